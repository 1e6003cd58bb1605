//! Models made of one captured layer: a document of many layers, each with weights of its own, in the
//! form that PyTorch's capture writes. Included by path.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Sizes of `llama7b_block_core` and what they become in a block of hidden size 128, 64 tokens and 4 heads.
pub const SMALL_LLAMA: [(u64, u64); 6] = [(4096, 128), (11008, 352), (2048, 64), (32, 4), (128, 32), (64, 16)];

/// A document with other sizes, which must stand for one thing each; tensors are packed.
pub fn scaled(document: &Value, sizes: &[(u64, u64)]) -> Value {
    let mut scaled = document.clone();
    let list = |document: &mut Value, key: &str| -> Vec<Value> {
        document[key].as_array_mut().map(std::mem::take).unwrap_or_default()
    };
    let inputs = list(&mut scaled, "inputs").into_iter().map(|mut input| {
        scale_type(&mut input["out"], sizes);
        input
    });
    let inputs: Vec<Value> = inputs.collect();
    let nodes = list(&mut scaled, "nodes").into_iter().map(|mut node| {
        scale(&mut node["args"], sizes);
        scale_type(&mut node["out"], sizes);
        node
    });
    let nodes: Vec<Value> = nodes.collect();
    (scaled["inputs"], scaled["nodes"]) = (inputs.into(), nodes.into());
    scaled
}

/// Numbers but those that name values.
fn scale(value: &mut Value, sizes: &[(u64, u64)]) {
    match value {
        Value::Number(number) => {
            let scaled = number.as_u64().and_then(|number| sizes.iter().find(|(from, _)| *from == number));
            if let Some(&(_, to)) = scaled {
                *value = to.into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| scale(value, sizes)),
        Value::Object(fields) => {
            let others = fields.iter_mut().filter(|(key, _)| *key != "ref");
            others.for_each(|(_, value)| scale(value, sizes));
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn scale_type(ty: &mut Value, sizes: &[(u64, u64)]) {
    if let Some(types) = ty.get_mut("tuple").and_then(Value::as_array_mut) {
        types.iter_mut().for_each(|ty| scale_type(ty, sizes));
        return;
    }
    scale(&mut ty["shape"], sizes);
    let mut step = 1;
    let mut steps: Vec<u64> = Vec::new();
    for dim in ty["shape"].as_array().into_iter().flatten().rev() {
        steps.push(step);
        step *= dim.as_u64().unwrap_or(1);
    }
    steps.reverse();
    ty["stride"] = json!(steps);
}

/// The layer `n_layers` times: the first input of each is the first output of the one before, static
/// inputs are its own, others are shared. `change` may alter the nodes of a layer.
pub fn stacked(layer: &Value, n_layers: usize, change: impl Fn(usize, &mut Value)) -> Value {
    let mut inputs: Vec<Value> = Vec::new();
    let mut nodes: Vec<Value> = Vec::new();
    let mut shared: BTreeMap<u64, u64> = BTreeMap::new();
    let mut stream: Option<u64> = None;
    let mut next = 0;
    let list = |key: &str| layer[key].as_array().expect("a document has lists");
    // Ids of inputs come before those of nodes.
    let first_node = 1_000_000;
    let mut next_node = first_node;
    for number in 0..n_layers {
        let mut ids: BTreeMap<u64, u64> = BTreeMap::new();
        for (position, input) in list("inputs").iter().enumerate() {
            let old = id_of(input);
            let known = if position == 0 { stream } else { shared.get(&old).copied() };
            let id = known.unwrap_or_else(|| {
                let mut copy = input.clone();
                (copy["id"], copy["name"]) = (next.into(), format!("{}_{number}", text(input, "name")).into());
                inputs.push(copy);
                next += 1;
                next - 1
            });
            if text(input, "role") == "input" && position > 0 {
                shared.insert(old, id);
            }
            ids.insert(old, id);
        }
        for node in list("nodes") {
            let mut copy = node.clone();
            ids.insert(id_of(node), next_node);
            (copy["id"], copy["name"]) = (next_node.into(), format!("{}_{number}", text(node, "name")).into());
            copy["module"] = format!("layers.{number}.{}", text(node, "module")).into();
            rename(&mut copy["args"], &ids);
            rename(&mut copy["kwargs"], &ids);
            change(number, &mut copy);
            nodes.push(copy);
            next_node += 1;
        }
        stream = list("outputs")[0]["ref"].as_u64().map(|output| ids[&output]);
    }
    json!({
        "format": "fxg-json/1",
        "name": format!("{}_{n_layers}", text(layer, "name")),
        "kind": "inference",
        "source": layer["source"],
        "inputs": inputs,
        "nodes": nodes,
        "outputs": [{ "ref": stream, "desc": "PlainAOTOutput(idx=0)" }],
        "constants": {},
        "reference_io": null,
    })
}

/// What `change` does to layers with another epsilon.
#[allow(dead_code, reason = "not everyone who includes this file changes layers")]
pub fn set_epsilon(node: &mut Value, epsilon: f64) {
    let is_epsilon = |value: &Value| value.as_f64().is_some_and(|number| number > 0.0 && number < 1e-4);
    for argument in node["args"].as_array_mut().into_iter().flatten().filter(|value| is_epsilon(value)) {
        *argument = epsilon.into();
    }
}

fn id_of(value: &Value) -> u64 {
    value["id"].as_u64().expect("values have ids")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn rename(value: &mut Value, ids: &BTreeMap<u64, u64>) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, ids)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_u64().filter(|_| key == "ref") {
                    Some(old) => *value = ids[&old].into(),
                    None => rename(value, ids),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
