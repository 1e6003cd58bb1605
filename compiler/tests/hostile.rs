//! Damaged and invented documents: refused with a reason, never a panic.

use compiler::import::{ImportError, parse_json};
use compiler::pipeline::{Options, Unwatched, compile};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A small graph that reaches most kinds of arguments.
fn document() -> Value {
    let tensor = |dtype: &str, shape: &[u64], stride: &[u64]| json!({"shape": shape, "stride": stride, "dtype": dtype, "device": "cpu"});
    let node = |id: u64, target: &str, args: Value, kwargs: Value, out: Value| {
        json!({"id": id, "name": format!("n{id}"), "target": target, "args": args, "kwargs": kwargs, "out": out,
               "module": "L['self'].layer"})
    };
    let f32s = |shape: &[u64], stride: &[u64]| tensor("float32", shape, stride);
    json!({
        "format": "fxg-json/1",
        "name": "small",
        "inputs": [
            {"id": 0, "name": "x", "role": "input", "out": f32s(&[2, 3, 4], &[12, 4, 1])},
            {"id": 1, "name": "i", "role": "input", "out": tensor("int64", &[2], &[1])},
            {"id": 2, "name": "w", "role": "static", "out": f32s(&[4], &[1])},
        ],
        "nodes": [
            node(3, "aten.add.Tensor", json!([{"ref": 0}, 1.5]), json!({"alpha": 2}), f32s(&[2, 3, 4], &[12, 4, 1])),
            node(4, "aten.permute.default", json!([{"ref": 3}, [0, 2, 1]]), json!({}), f32s(&[2, 4, 3], &[12, 1, 4])),
            node(5, "aten.view.default", json!([{"ref": 3}, [-1, 4]]), json!({}), f32s(&[6, 4], &[4, 1])),
            node(6, "aten.native_layer_norm.default", json!([{"ref": 5}, [4], {"ref": 2}, null, 1e-5]), json!({}),
                 json!({"tuple": [f32s(&[6, 4], &[4, 1]), f32s(&[6, 1], &[1, 1]), f32s(&[6, 1], &[1, 1])]})),
            node(7, "getitem", json!([{"ref": 6}, 0]), json!({}), f32s(&[6, 4], &[4, 1])),
            node(8, "aten.slice.Tensor", json!([{"ref": 7}, 0, 1, 9223372036854775807_i64]), json!({}),
                 f32s(&[5, 4], &[4, 1])),
            node(9, "aten.embedding.default", json!([{"ref": 8}, {"ref": 1}]), json!({}), f32s(&[2, 4], &[4, 1])),
            node(10, "aten.cat.default", json!([[{"ref": 9}, {"ref": 8}]]), json!({}), f32s(&[7, 4], &[4, 1])),
            node(11, "aten.mean.dim", json!([{"ref": 10}, [-1], true]), json!({}), f32s(&[7, 1], &[1, 1])),
            node(12, "const", json!([{"str": "c"}]), json!({}), f32s(&[2], &[1])),
            node(13, "aten.bmm.default", json!([{"ref": 3}, {"ref": 4}]), json!({}), f32s(&[2, 3, 3], &[9, 3, 1])),
        ],
        "outputs": [{"ref": 11, "desc": "PlainAOTOutput(idx=0)"}, {"ref": null, "desc": null}, {"ref": 13}, {"ref": 12}],
        "constants": {"c": {"shape": [2], "dtype": "float32", "data": "AACAPwAAAEA="}},
    })
}

fn parse(document: &Value) -> Result<ir::Graph, ImportError> {
    parse_json(document.to_string().as_bytes())
}

fn reason(document: &Value) -> String {
    match parse(document) {
        Err(ImportError::Malformed(reason)) => reason,
        Err(ImportError::Unsupported(nodes)) => panic!("unsupported: {nodes:?}"),
        Ok(_) => panic!("the document is accepted"),
    }
}

#[test]
fn the_undamaged_document_is_a_graph() {
    let graph = parse(&document()).unwrap();
    assert_eq!(graph.inputs.len(), 3);
    assert_eq!(graph.outputs.len(), 4);
    assert!(graph.outputs[1].value.is_none());
}

#[test]
fn contradictions_are_named() {
    let edited = |edit: fn(&mut Value)| {
        let mut document = document();
        edit(&mut document);
        reason(&document)
    };
    assert_eq!(edited(|d| d["format"] = json!("fxg-json/2")), "format `fxg-json/2` is not known; `fxg-json/1` is");
    assert!(edited(|d| d["nodes"][0]["args"][0]["ref"] = json!(4)).contains("names 4, which is not defined before"));
    assert!(edited(|d| d["nodes"][1]["id"] = json!(3)).contains("id 3 is defined twice"));
    assert!(edited(|d| d["nodes"][0]["out"]["shape"] = json!([2, 3, 5])).contains("recorded as float32[2, 3, 5]"));
    assert!(edited(|d| d["nodes"][2]["args"][1] = json!([5, -1])).contains("changes the number of elements"));
    assert!(edited(|d| d["nodes"][3]["args"] = json!([])).contains("argument `input` is missing"));
    assert!(edited(|d| d["inputs"][0]["out"]["shape"] = json!([1_u64 << 40, 3, 4])).contains("elements"));
    assert!(edited(|d| d["inputs"][0]["out"]["shape"] = json!([1_u64 << 36, 4, 4])).contains("elements or more"));
    assert!(edited(|d| d["inputs"][0]["out"]["stride"] = json!([1_u64 << 60, 4, 1])).contains("reach further"));
    assert!(edited(|d| d["constants"]["c"]["data"] = json!("AAAA")).contains("bytes of data"));
    assert!(edited(|d| d["outputs"][0]["ref"] = json!(99)).contains("there is no node 99"));
    assert!(edited(|d| d["outputs"][0]["ref"] = json!(6)).contains("is a tuple"));
}

#[test]
fn depth_is_bounded() {
    let mut document = document();
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    document["nodes"][0]["args"] = json!("@");
    let text = document.to_string().replace("\"@\"", &format!("[{deep}]"));
    assert!(matches!(parse_json(text.as_bytes()), Err(ImportError::Malformed(_))));
}

#[test]
fn all_refused_nodes_are_listed_at_once() {
    let mut document = document();
    document["nodes"][0]["target"] = json!("aten.made_up.default");
    document["nodes"][8]["kwargs"] = json!({"dtype": {"dtype": "float64"}});
    document["nodes"][8]["out"]["dtype"] = json!("float64");
    document["inputs"][2]["out"]["dtype"] = json!("complex64");
    let Err(ImportError::Unsupported(nodes)) = parse(&document) else { panic!("three nodes are refused") };
    let listed: Vec<(&str, &str)> =
        nodes.iter().map(|node| (node.location.node.as_str(), node.reason.as_str())).collect();
    assert_eq!(
        listed,
        [
            ("w", "element type complex64 is not supported"),
            ("n3", "this overload is not supported"),
            ("n11", "element type float64: no device instruction takes it"),
        ]
    );
    assert_eq!(nodes[1].location.module, "layer");
}

/// Every place in a document, as a JSON pointer.
fn pointers(value: &Value, prefix: &str, found: &mut Vec<String>) {
    found.push(prefix.to_owned());
    match value {
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(position, item)| pointers(item, &format!("{prefix}/{position}"), found));
        }
        Value::Object(entries) => {
            entries.iter().for_each(|(key, item)| pointers(item, &format!("{prefix}/{key}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn mutation() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(i64::MAX)),
        Just(json!(i64::MIN)),
        Just(json!(u64::MAX)),
        (0_i64..20).prop_map(|number| json!(number)),
        Just(json!(1e308)),
        Just(json!(0.5)),
    ];
    let targets = prop::sample::select(compiler::import::supported_overloads().collect::<Vec<_>>());
    prop_oneof![
        4 => numbers,
        3 => (0_u64..14).prop_map(|id| json!({"ref": id})),
        2 => targets.prop_map(|target| json!(target)),
        1 => prop::collection::vec(-3_i64..8, 0..4).prop_map(|items| json!(items)),
        1 => Just(json!({"dtype": "bfloat16"})),
        1 => Just(json!({"dtype": "int32"})),
        1 => Just(json!("bool")),
        1 => Just(json!({"sym": "s0"})),
        1 => Just(json!({"float": "nan"})),
        1 => Just(json!(null)),
        1 => Just(json!(true)),
        1 => Just(json!([[{"ref": 0}, null, {"ref": 1}]])),
        1 => Just(json!({"shape": [0, 3], "stride": [3, 1], "dtype": "float32"})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_documents_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), mutation()), 1..4),
        drop_recorded in any::<bool>(),
    ) {
        let mut document = document();
        if drop_recorded {
            // Without recorded results the builders themselves are all that checks.
            for node in document["nodes"].as_array_mut().unwrap() {
                node["out"] = json!(null);
            }
        }
        for (place, replacement) in edits {
            let mut places = Vec::new();
            pointers(&document, "", &mut places);
            if let Some(value) = document.pointer_mut(&places[place.index(places.len())]) {
                *value = replacement;
            }
        }
        let _ = parse(&document);
    }

    #[test]
    fn mutated_bytes_never_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut text = document().to_string().into_bytes();
        for (place, byte) in edits {
            let position = place.index(text.len());
            text[position] = byte;
        }
        let _ = parse_json(&text);
    }
}

/// Arguments tried in every position of every overload.
fn arguments() -> Vec<Value> {
    vec![
        json!({"ref": 0}),
        json!({"ref": 1}),
        json!({"ref": 2}),
        json!([{"ref": 0}, {"ref": 0}]),
        json!([]),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!({"float": "-inf"}),
        json!([1, 2]),
        json!([-1]),
        json!([0, 0]),
        json!([4]),
        json!(true),
        json!(null),
        json!({"str": "none"}),
        json!({"dtype": "int64"}),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn overloads_take_any_arguments_without_panic(
        target in prop::sample::select(compiler::import::supported_overloads().collect::<Vec<_>>()),
        chosen in prop::collection::vec(prop::sample::select(arguments()), 0..7),
        first in 0_u64..3,
    ) {
        let mut args = vec![json!({"ref": first})];
        args.extend(chosen);
        let mut document = document();
        document["nodes"] = json!([
            {"id": 3, "name": "n3", "target": target, "args": args, "kwargs": {}, "out": null},
            {"id": 4, "name": "n4", "target": "getitem", "args": [{"ref": 3}, 1], "kwargs": {}, "out": null},
        ]);
        document["outputs"] = json!([]);
        let _ = parse(&document);
        document["nodes"].as_array_mut().unwrap().pop();
        document["outputs"] = json!([{"ref": 3}]);
        let _ = parse(&document);
    }
}

#[test]
fn imported_graphs_of_odd_shapes_compile_or_are_refused() {
    for shape in [[0_u64, 3, 4], [2, 0, 4], [1, 1, 1], [129, 3, 1]] {
        let stride = [shape[1] * shape[2], shape[2], 1];
        let tensor = json!({"shape": shape, "stride": stride, "dtype": "float32", "device": "cpu"});
        let document = json!({
            "format": "fxg-json/1", "name": "odd",
            "inputs": [{"id": 0, "name": "x", "out": tensor}],
            "nodes": [{"id": 1, "name": "n", "target": "aten.exp.default", "args": [{"ref": 0}], "out": tensor}],
            "outputs": [{"ref": 1}],
        });
        let graph = parse(&document).unwrap();
        match compile(&graph, &Options::default(), &mut Unwatched) {
            Ok(_) | Err(compiler::Error::Unsupported { .. }) => {}
            Err(error) => panic!("{shape:?}: {error}"),
        }
    }
}
