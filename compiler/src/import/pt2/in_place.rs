//! In-place overloads and the functional ones that compute the same.

/// Gives the source with the type and shape of what it is copied to.
pub const COPY: &str = "aten.copy.default";

/// What an in-place overload computes.
pub enum Functional {
    /// This overload's result.
    Overload(String),
    /// Nothing new.
    Nothing,
    Refused(&'static str),
}

/// How an in-place overload is computed without changing anything; `None` for other overloads.
pub fn functional(target: &str) -> Option<Functional> {
    let (op, overload) = target.strip_prefix("aten.")?.split_once('.')?;
    if overload == "out" || overload.ends_with("_out") {
        return Some(Functional::Refused("writing into an argument `out` is not supported"));
    }
    let name = match op {
        "detach_" | "requires_grad_" => return Some(Functional::Nothing),
        "squeeze_" | "unsqueeze_" | "transpose_" | "t_" | "swapaxes_" | "swapdims_" | "resize_" | "resize_as_"
        | "set_" | "as_strided_" => {
            return Some(Functional::Refused("changing the shape of a tensor in place is not supported"));
        }
        "copy_" => return Some(Functional::Overload(COPY.to_owned())),
        "zero_" => "zeros_like",
        "fill_" => "fill",
        "__iand__" => "bitwise_and",
        "__ior__" => "bitwise_or",
        "__ixor__" => "bitwise_xor",
        _ if op.starts_with("__") => return None,
        _ => op.strip_suffix('_')?,
    };
    Some(Functional::Overload(format!("aten.{name}.{overload}")))
}
