//! Names of element types in `neff.json` and `tensor_map.json`.

use ir::Dtype;

const NAMES: [(Dtype, &str); 12] = [
    (Dtype::F64, "float64"),
    (Dtype::F32, "float32"),
    (Dtype::Bf16, "bfloat16"),
    (Dtype::F16, "float16"),
    (Dtype::F8E4m3, "float8e4"),
    (Dtype::F8E5m2, "float8e5"),
    (Dtype::I64, "int64"),
    (Dtype::I32, "int32"),
    (Dtype::I16, "int16"),
    (Dtype::I8, "int8"),
    (Dtype::U8, "uint8"),
    (Dtype::Bool, "bool"),
];

/// The name of an element type, for example `bfloat16`.
pub fn element_name(dtype: Dtype) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == dtype).expect("every element type has a name").1
}

/// The element type of a name; `None` for names that this project does not compute with.
pub fn element_type(name: &str) -> Option<Dtype> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
}
