//! Members as types: what other compilers spell differently is read the same, and what is unknown is kept.

use neff::Code;
use neff::members::{
    Definition, EngineFile, GraphFile, HloStats, Metric, QueueKind, TensorEntry, TensorKind, TensorMap, Variable,
    VariableKind, from_json, npy, to_compact_json, to_pretty_json,
};
use proptest::prelude::{any, prop_assert_eq, proptest};
use serde_json::{Value, json};

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    from_json("member.json", &to_compact_json(value)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn integers_may_be_numbers_or_strings_and_large() {
    let definition: Definition = parse(&json!({
        "runtime_event_count": "12",
        "var": {
            "x": {"type": "input", "var_id": "1", "size": "4294967296"},
            "y": {"type": "output", "var_id": 2, "size": 18_446_744_073_709_551_615_u64},
        },
        "dma_queue": {"q": {"type": "in", "num_queues": "16", "semaphore_set": ["8", 9]}},
    }));
    assert_eq!(definition.runtime_event_count, Some(12));
    assert_eq!(definition.var["x"].size, Some(1 << 32));
    assert_eq!(definition.var["y"].size, Some(u64::MAX));
    assert_eq!(definition.dma_queue["q"].semaphore_set, Some(vec![8, 9]));
    let refused = from_json::<Definition>("def.json", br#"{"var": {"x": {"type": "input", "var_id": -1}}}"#);
    assert_eq!(refused.unwrap_err().code, Code::BadJson);
}

#[test]
fn unknown_keys_and_kinds_are_kept() {
    let value = json!({
        "version": "0.7",
        "new_key": {"deep": [1, 2]},
        "var": {"x": {"type": "shared-table", "var_id": 1, "merged_file_offset": 64}},
        "dma_queue": {"q": {"type": "broadcast", "priority": 3}},
    });
    let definition: Definition = parse(&value);
    assert_eq!(definition.var["x"].kind, VariableKind::Other("shared-table".to_owned()));
    assert_eq!(definition.var["x"].size, None);
    assert_eq!(definition.dma_queue["q"].kind, QueueKind::Other("broadcast".to_owned()));
    let written = serde_json::to_value(&definition).unwrap();
    for key in ["new_key", "var", "dma_queue"] {
        assert_eq!(written[key], value[key], "{key}");
    }
}

#[test]
fn descriptors_may_be_a_list_or_one_object() {
    let transfer = json!({"from": "x", "from_off": 0, "from_sizes": [64, 8], "from_steps": [1, 64],
        "to": "SB", "to_off": 16, "to_sizes": [64, 8], "to_steps": [1, 262_144], "vendor_key": true});
    let file: EngineFile = parse(&json!({"dma": [{"id": 1, "desc": [transfer]}, {"id": "2", "desc": transfer}]}));
    assert_eq!(file.dma[0].desc, file.dma[1].desc);
    assert_eq!(file.dma[0].desc[0].from.variable.as_deref(), Some("x"));
    assert_eq!(file.dma[0].desc[0].extra["vendor_key"], json!(true));
    assert_eq!(serde_json::to_value(&file.dma[0].desc[0]).unwrap(), transfer);
    // (8 + 16) on each side, 16 bytes each.
    assert_eq!(file.dma[0].desc[0].ring_bytes(), 16 * (8 + 16 + 8 + 16));
}

#[test]
fn computing_transfers_count_every_source() {
    let source = json!({"from": "x", "from_off": 0, "from_sizes": [4, 10], "from_steps": [1, 4]});
    let file: EngineFile = parse(&json!({"dma": [{"id": 0, "desc": [{"op": "add", "from_arr": [source, source],
        "to": "y", "to_off": 0, "to_sizes": [40], "to_steps": [1]}]}]}));
    assert_eq!(file.dma[0].desc[0].ring_bytes(), 2 * 16 * (10 + 16 + 1 + 16));
}

#[test]
fn faults_name_the_byte_and_deep_nesting_is_one() {
    let text = b"{\n  \"var\": {},\n  \"dma_queue\": {\"q\" 1}\n}";
    let error = from_json::<Definition>("sg00/def.json", text).unwrap_err();
    assert_eq!(error.place.member.as_deref(), Some("sg00/def.json"));
    let byte = usize::try_from(error.place.byte.unwrap()).unwrap();
    assert_eq!(text[byte], b'1', "{error}");
    assert!(error.to_string().starts_with("sg00/def.json, byte 35: expected `:`"), "{error}");
    let deep = format!("{{\"x\": {}1{}}}", "[".repeat(4000), "]".repeat(4000));
    assert_eq!(from_json::<GraphFile>("neff.json", deep.as_bytes()).unwrap_err().code, Code::BadJson);
    // Three characters make a node of several hundred bytes.
    let wide = format!("{{\"nodes\": [{}{{}}]}}", "{},".repeat(100_000));
    assert_eq!(from_json::<GraphFile>("neff.json", wide.as_bytes()).unwrap_err().code, Code::TooLarge);
}

#[test]
fn the_statistics_have_the_vendor_ratio() {
    // The vendor's figures for a [128, 256] by [256, 128] product in 16 bits with an equal amount of other traffic.
    let stats = HloStats::of_graph(4_194_304, 131_072, 131_072, 0);
    let value = serde_json::to_value(&stats).unwrap();
    assert_eq!(value["ArithmeticIntensity"], json!(32.0));
    assert_eq!(value["HloMacCount"], json!(4_194_304));
    assert_eq!(value["Traffic"], json!(262_144));
    assert_eq!(value.as_object().unwrap().len(), 12);
    let metric = serde_json::to_value(Metric::new("TPBCount", 1, "Count")).unwrap();
    assert_eq!(metric, json!({"MetricName": "TPBCount", "Value": 1, "Unit": "Count"}));
}

#[test]
fn tensor_entries_have_the_vendor_form() {
    let map: TensorMap = [
        ("x".to_owned(), TensorEntry::io("x", TensorKind::Input, "float32", &[128, 256])),
        ("w".to_owned(), TensorEntry::constant("w", "float32", &[256, 256, 1, 1], "value_w.npy")),
    ]
    .into();
    let expected = json!({
        "x": {"dtype": "float32", "is_const": false, "kind": "input", "layer_name": "x", "sim_format": "NC",
              "sim_shape": [128, 256], "tf_format": "NC", "tf_shape": [128, 256], "tf_file": "value_x.npy"},
        "w": {"dtype": "float32", "is_const": true, "layer_name": "w", "sim_format": "CRSM",
              "sim_shape": [256, 256, 1, 1], "tf_format": "CRSM", "tf_shape": [256, 256, 1, 1],
              "tf_file": "value_w.npy", "split_axis": null, "split_indices_or_sections": null}});
    assert_eq!(serde_json::to_value(&map).unwrap(), expected);
    assert_eq!(parse::<TensorMap>(&expected), map);
}

#[test]
fn variables_have_the_vendor_form() {
    let file = serde_json::to_value(Variable::file(3, 262_144, "value_w.npy")).unwrap();
    let expected = json!({"type": "file", "var_id": 3, "size": 262_144, "alignment": 262_144, "fabric_path": "main",
        "file_name": "value_w.npy", "ops": []});
    assert_eq!(file, expected);
    let buffer = serde_json::to_value(Variable::unsized_of(VariableKind::StateBuffer, 0)).unwrap();
    assert_eq!(buffer, json!({"type": "state-buffer", "var_id": 0}));
}

#[test]
fn json_is_indented_by_four_or_on_one_line() {
    let value = json!({"a": [1]});
    assert_eq!(to_pretty_json(&value), b"{\n    \"a\": [\n        1\n    ]\n}");
    assert_eq!(to_compact_json(&value), b"{\"a\":[1]}");
}

#[test]
fn arrays_have_a_128_byte_header() {
    let bytes = npy::write("<f4", &[2, 3], &[0; 24]);
    assert_eq!(bytes.len(), 128 + 24);
    assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
    assert_eq!(bytes[127], b'\n');
    assert!(bytes[10..].starts_with(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   "));
    let scalar = npy::write("|u1", &[], &[5]);
    assert_eq!(npy::read("v", &scalar).unwrap().shape, Vec::<u64>::new());
    assert!(npy::write("<f4", &[7], &[]).windows(4).any(|part| part == b"(7,)"));
}

#[test]
fn array_headers_of_all_versions_are_read() {
    let text = b"{\"shape\": (4L, 2), 'fortran_order': True,\n 'descr': [('a', '<f4'), ('b', '<i2', (2,))]}";
    for version in [2, 3] {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text);
        bytes.extend(b"data");
        let array = npy::read("v", &bytes).unwrap();
        assert_eq!((array.shape, array.fortran_order, array.data), (vec![4, 2], true, &b"data"[..]));
        assert_eq!(array.descr, "[('a', '<f4'), ('b', '<i2', (2,))]");
    }
    for (bytes, byte) in [
        (&b"\x93NUMPX"[..], 0),
        (b"\x93NUMPY\x04\x00\x00\x00\x00\x00", 6),
        (b"\x93NUMPY\x01\x00\xff", 8),
        (b"\x93NUMPY\x01\x00\x05\x00{", 10),
        (b"\x93NUMPY\x01\x00\x02\x00{}", 12),
        (b"\x93NUMPY\x01\x00\x0c\x00{'shape':-1}", 19),
    ] {
        let error = npy::read("v.npy", bytes).unwrap_err();
        assert_eq!((error.code, error.place.byte), (Code::BadArray, Some(byte)), "{error}");
    }
}

proptest! {
    #[test]
    fn any_array_reads_back(
        shape in proptest::collection::vec(any::<u64>(), 0..12),
        data in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let bytes = npy::write("<V2", &shape, &data);
        let array = npy::read("v", &bytes).unwrap();
        prop_assert_eq!(array.shape, shape);
        prop_assert_eq!(array.data, &data[..]);
        prop_assert_eq!((array.descr.as_str(), array.fortran_order), ("<V2", false));
        prop_assert_eq!((bytes.len() - data.len()) % 64, 0);
    }

    #[test]
    fn damaged_arrays_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), version in 0..5_u8) {
        let magic = [b"\x93NUMPY".as_slice(), &[version]].concat();
        let n_bytes = magic.len().min(bytes.len());
        bytes[..n_bytes].copy_from_slice(&magic[..n_bytes]);
        let _ = npy::read("v", &bytes);
        let mut header = npy::write("<f4", &[3, 5], &[]);
        for (at, byte) in bytes.iter().enumerate().filter(|(at, _)| at % 17 == 0) {
            header[at % 128] = *byte;
        }
        let _ = npy::read("v", &header);
    }
}
