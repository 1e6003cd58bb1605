//! How reports name what several nodes of a model have become.

use ir::graph::{Location, LocationId};

/// ATen ops that only rename or convert elements.
const VIEWS: [&str; 16] = [
    "view",
    "reshape",
    "_unsafe_view",
    "permute",
    "transpose",
    "t",
    "expand",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "clone",
    "alias",
    "detach",
    "_to_copy",
    "to",
];

/// ATen ops that multiply matrices.
const PRODUCTS: [&str; 9] =
    ["mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "dot", "mv", "scaled_dot_product_attention"];

/// The node that says most about what several have become: the last product of matrices, else the
/// first that computes, else the first.
fn main_location<'a>(locations: &'a [Location], ids: &[LocationId]) -> Option<&'a Location> {
    let all = || ids.iter().map(|id| &locations[id.index()]);
    let is_one_of = |names: &[&str], location: &Location| names.contains(&op_name(&location.target));
    all()
        .rfind(|location| is_one_of(&PRODUCTS, location))
        .or_else(|| all().find(|location| !is_one_of(&VIEWS, location)))
        .or_else(|| all().next())
}

/// A node with its module: `mm_4 (layers.0.mlp)`; empty where there is none.
pub fn main_name(locations: &[Location], ids: &[LocationId]) -> String {
    match main_location(locations, ids) {
        Some(Location { node, module, .. }) if !module.is_empty() => format!("{node} ({module})"),
        Some(Location { node, .. }) => node.clone(),
        None => String::new(),
    }
}

/// `mul` of `aten.mul.Tensor`.
fn op_name(target: &str) -> &str {
    target.split('.').nth(1).unwrap_or(target)
}

#[cfg(test)]
mod tests {
    use ir::graph::{Location, LocationId};

    use super::main_name;

    #[test]
    fn products_come_before_what_computes_and_that_before_views() {
        let location = |node: &str, target: &str, module: &str| Location {
            node: node.to_owned(),
            target: target.to_owned(),
            module: module.to_owned(),
            ..Location::default()
        };
        let locations = [
            location("view_1", "aten.view.default", ""),
            location("mul", "aten.mul.Tensor", "norm"),
            location("mm_2", "aten.mm.default", "gate"),
            location("sigmoid", "aten.sigmoid.default", ""),
        ];
        let name = |ids: &[u32]| {
            let ids: Vec<LocationId> = ids.iter().copied().map(LocationId).collect();
            main_name(&locations, &ids)
        };
        assert_eq!(name(&[0, 1, 2, 3]), "mm_2 (gate)");
        assert_eq!(name(&[0, 1, 3]), "mul (norm)");
        assert_eq!(name(&[0]), "view_1");
        assert_eq!(name(&[]), "");
    }
}
