//! The NEFF alone decides: without debug and statistics members and with all variables renamed,
//! outputs and timeline stay the same.

use std::collections::BTreeMap;

use ir::target::TargetName;
use neff::container::{Draft, OPEN_ENCODING_BIT, read, write};
use passes::Numerics;
use serde_json::{Map, Value};

use compiler::execute::Executable;

use crate::support::{neff_of, options, recorded, sample_graph};

/// Renames every key of an object that is a variable.
fn renamed_keys(object: &Map<String, Value>, names: &BTreeMap<String, String>) -> Map<String, Value> {
    object.iter().map(|(key, value)| (names.get(key).unwrap_or(key).clone(), renamed(value, names))).collect()
}

/// Renames variables wherever they stand as text or key.
fn renamed(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => Value::String(names.get(text).unwrap_or(text).clone()),
        Value::Array(items) => items.iter().map(|item| renamed(item, names)).collect(),
        Value::Object(object) => Value::Object(renamed_keys(object, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn stripped(neff: &[u8]) -> Vec<u8> {
    let container = read(neff).expect("our own file is sound");
    let mut members = container.members.clone();
    for name in ["hlo_stats.json", "metrics.json", "sg00/neffuse_debug.json"] {
        members.remove(name).expect("the member was there");
    }
    let parsed = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).expect("members are JSON") };
    let definition = parsed(&members["sg00/def.json"]);
    let variables = definition["var"].as_object().expect("an object").keys();
    let names: BTreeMap<String, String> =
        variables.enumerate().map(|(position, name)| (name.clone(), format!("v{}", 1000 - position))).collect();
    for member in ["sg00/def.json", "sg00/tensor_map.json", "neff.json"] {
        let value = renamed(&parsed(&members[member]), &names);
        members.insert(member.to_owned(), serde_json::to_vec(&value).expect("JSON"));
    }
    let name = container.header.name_text().into_owned();
    write(&Draft { name, feature_bits: 1 << OPEN_ENCODING_BIT, lnc_size: 1, members }).expect("writable")
}

#[test]
fn outputs_and_timeline_do_not_depend_on_names_or_debug_members() {
    for name in ["rms_norm_naive_bf16", "mlp", "tiny_bert_mlm", "tiny_llama_core"] {
        let graph = sample_graph(name);
        let samples = recorded(name, &graph);
        let neff = neff_of(&graph, &options(TargetName::Trn2, Numerics::Contract));
        let (full, bare) = (Executable::load(&neff), Executable::load(&stripped(&neff)));
        let (full, bare) = (full.expect("loads"), bare.expect("loads without names and debug members"));
        let outputs = |executable: &Executable| executable.run_values(&samples.inputs).expect("runs");
        assert_eq!(outputs(&full), outputs(&bare), "{name}");
        let timeline = |executable: &Executable| {
            let timeline = executable.timeline().expect("runs");
            (timeline.body_ps, timeline.nc_ps, timeline.total_ps, timeline.busy, timeline.spans.len())
        };
        assert_eq!(timeline(&full), timeline(&bare), "{name}");
    }
}
