//! The shared NEFF files: four reduced ones of the vendor's compiler and six synthetic ones.
//!
//! `EXPECTED.json` beside them says what an inspector must report for the four; for the others their names do.

use ir::program::Engine;
use neff::Code;
use neff::container::{Container, HashOrder, PayloadForm, read};
use neff::info::{Report, StreamEncoding, content_differences, features, header_differences};
use neff::members::{
    BuildInfo, Definition, EngineFile, GraphFile, HloStats, Kelf, Metrics, TensorMap, VariableKind, from_json, npy,
};
use serde_json::Value;
use std::path::PathBuf;

fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "shared", "neff", "fixtures", name].iter().collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn container(name: &str) -> Container {
    read(&fixture(name)).unwrap_or_else(|failure| panic!("{name}: {failure}"))
}

const VENDOR: [&str; 4] = [
    "nkipy_matmul_small.neff",
    "fused_attention_fp32_s512.neff",
    "baseline_attention_bf16_s1024.neff",
    "autocomp_trn1.neff",
];

const SYNTHETIC: [&str; 6] = [
    "synthetic/lnc1.neff",
    "synthetic/lnc1_header2048.neff",
    "synthetic/lnc1_plain_md5.neff",
    "synthetic/lnc1_uncompressed.neff",
    "synthetic/lnc1_unpadded.neff",
    "synthetic/lnc2.neff",
];

/// Every key of `expected` stands in `actual` with the same value, at any depth.
fn assert_contains(actual: &Value, expected: &Value, path: &str) {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => {
            for (key, value) in expected {
                let found = actual.get(key).unwrap_or_else(|| panic!("{path}: no key `{key}`"));
                assert_contains(found, value, &format!("{path}.{key}"));
            }
        }
        (Value::Array(actual), Value::Array(expected)) => {
            assert_eq!(actual.len(), expected.len(), "{path}: length");
            for (at, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                assert_contains(actual, expected, &format!("{path}[{at}]"));
            }
        }
        (actual, expected) => assert_eq!(actual, expected, "{path}"),
    }
}

#[test]
fn reports_contain_what_is_expected_of_the_vendor_files() {
    let expected: Value = serde_json::from_slice(&fixture("EXPECTED.json")).unwrap();
    let entries = expected.as_object().unwrap();
    assert_eq!(entries.len(), VENDOR.len());
    for (name, entry) in entries {
        let report = Report::of_file(&fixture(name)).unwrap();
        assert_contains(&report.to_json(), entry, name);
        assert_eq!(report.encoding.streams, StreamEncoding::Opaque);
        assert_eq!(report.warnings, Vec::<String>::new(), "{name}");
        assert_eq!(report.unknown_keys, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn synthetic_variants_of_one_core_have_equal_content() {
    let base = container("synthetic/lnc1.neff");
    let base_report = Report::of(&base);
    for name in &SYNTHETIC[1..5] {
        let variant = container(name);
        assert_eq!(content_differences(&base, &variant), Vec::<String>::new(), "{name}");
        let report = Report::of(&variant);
        assert_eq!(report.content_sha256, base_report.content_sha256, "{name}");
        assert_eq!(report.cores, base_report.cores, "{name}");
        assert_eq!(report.nodes, base_report.nodes, "{name}");
    }
}

#[test]
fn synthetic_variants_differ_in_the_header_as_their_names_say() {
    let base = container("synthetic/lnc1.neff");
    let fields = |name: &str| -> Vec<&'static str> {
        header_differences(&base, &container(name)).into_iter().map(|difference| difference.field).collect()
    };
    // The name is in the payload too, so hash and packed size move with it; the identities are random.
    let plain_md5 = ["hash", "uuid", "name", "hash_order", "gzip_trailing_zero_bytes"];
    assert_eq!(fields("synthetic/lnc1_plain_md5.neff"), plain_md5);
    let header2048 = ["file_size", "header_size", "hash", "uuid", "name", "gzip_trailing_zero_bytes"];
    assert_eq!(fields("synthetic/lnc1_header2048.neff"), header2048);
    let unpadded = ["file_size", "data_size", "hash", "uuid", "name", "gzip_trailing_zero_bytes"];
    assert_eq!(fields("synthetic/lnc1_unpadded.neff"), unpadded);
    let uncompressed = ["file_size", "data_size", "hash", "uuid", "name", "form", "gzip_trailing_zero_bytes"];
    assert_eq!(fields("synthetic/lnc1_uncompressed.neff"), uncompressed);

    assert_eq!(container("synthetic/lnc1_plain_md5.neff").payload.hash_order, HashOrder::Plain);
    assert_eq!(container("synthetic/lnc1_uncompressed.neff").payload.form, PayloadForm::PlainTar);
    let wide = container("synthetic/lnc1_header2048.neff");
    assert_eq!(wide.header.header_size, 2048);
    assert_eq!(wide.warnings.iter().map(|warning| warning.code).collect::<Vec<_>>(), [Code::BadHeader]);
    for name in SYNTHETIC {
        let order = container(name).payload.hash_order;
        assert!(matches!(order, HashOrder::WordSwapped | HashOrder::Plain), "{name}: {order:?}");
    }
}

#[test]
fn the_published_hash_vector_holds() {
    let base = container("synthetic/lnc1.neff");
    let report = Report::of(&base);
    assert_eq!(report.header.hash, "827cb5a3f896e755889fa08d3d3da353");
    assert_eq!(report.payload.md5, "a3b57c8255e796f88da09f8853a33d3d");
    assert_eq!(base.header.data_size, 10_240);
    assert_eq!(base.payload.hash_order, HashOrder::WordSwapped);
}

#[test]
fn memory_of_the_synthetic_core_is_counted_by_hand() {
    let report = Report::of(&container("synthetic/lnc1.neff"));
    let [core] = &report.cores[..] else { panic!("one core") };
    // Two overlapping virtual variables: [0, 131072) and [65536, 196608).
    assert_eq!(core.scratchpad_bytes, 196_608);
    assert_eq!(core.constant_bytes, 262_144 + 1_024);
    assert_eq!(core.code_bytes, 256 + 128 + 384 + 128 + 320);
    // Four static copies of 128 rows: 16 * (128 + 16 + 128 + 16) bytes each.
    assert_eq!(core.static_dma_desc, 4);
    assert_eq!(core.dma_ring_bytes, 4 * 16 * (128 + 16 + 128 + 16));
    assert_eq!((core.input_bytes, core.output_bytes), (131_072, 131_072));
    assert_eq!(core.queues["qSPIn0"], ("in".to_owned(), Some("sp".to_owned()), 16));
    assert_eq!(core.vars["tmp1_sg0000"], ("virtual".to_owned(), Some(131_072), 6));
}

#[test]
fn two_physical_cores_are_two_core_reports_and_one_output_list() {
    let two = Report::of(&container("synthetic/lnc2.neff"));
    assert_eq!(two.cores.iter().map(|core| core.sg.as_str()).collect::<Vec<_>>(), ["sg00", "sg01"]);
    assert_eq!(two.header.lnc_size, 2);
    assert_eq!((two.inputs, two.outputs), (vec!["x".to_owned()], vec!["y".to_owned()]));
    assert_eq!(two.nodes.len(), 2);
    assert!(two.nodes[1].variables.is_empty());
}

#[test]
fn the_listing_joins_definition_and_tensor_map() {
    let report = Report::of(&container("nkipy_matmul_small.neff"));
    let node = &report.nodes[0];
    assert_eq!((node.node, node.executor, node.name.as_str()), (2, "NeuronCore", "sg00"));
    let row = |at: usize| {
        let variable = &node.variables[at];
        (variable.variable_name.as_str(), variable.kind, variable.format.as_str(), variable.dtype.as_str())
    };
    assert_eq!(row(0), ("x", "IN", "NC", "float16"));
    assert_eq!(row(1), ("y", "IN", "NC", "float16"));
    assert_eq!(row(2), ("output0", "OUT", "NC", "float16"));
    // The map calls it sg0000_identity_82_CRSM: only the file name joins the two.
    assert_eq!(row(3), ("identity_82_sg0000", "WEIGHT", "CRSM", "float16"));
    assert_eq!(node.variables[0].shape, Some(vec![128, 256]));
}

#[test]
fn every_documented_member_reads_and_writes_back_the_same_values() {
    for name in VENDOR.iter().chain(&SYNTHETIC) {
        let container = container(name);
        for (member, bytes) in &container.members {
            let original = || serde_json::from_slice::<Value>(bytes).unwrap();
            let file = member.rsplit('/').next().unwrap();
            let engines = ["PE.json", "Activation.json", "Pool.json", "DVE.json", "SP.json"];
            let written = match file {
                "kelf-0.json" => value_of::<Kelf>(member, bytes),
                "info.json" => value_of::<BuildInfo>(member, bytes),
                "neff.json" => value_of::<GraphFile>(member, bytes),
                "def.json" => value_of::<Definition>(member, bytes),
                "tensor_map.json" => value_of::<TensorMap>(member, bytes),
                "hlo_stats.json" => value_of::<HloStats>(member, bytes),
                "metrics.json" => value_of::<Metrics>(member, bytes),
                _ if engines.contains(&file) => value_of::<EngineFile>(member, bytes),
                _ => continue,
            };
            assert_eq!(written, original(), "{name}: {member}");
        }
    }
}

fn value_of<T: serde::Serialize + serde::de::DeserializeOwned>(member: &str, bytes: &[u8]) -> Value {
    let typed: T = from_json(member, bytes).unwrap_or_else(|error| panic!("{error}"));
    serde_json::to_value(typed).unwrap()
}

#[test]
fn a_graph_of_one_kelf_has_the_vendor_form() {
    let read_graph =
        |name: &str| -> GraphFile { from_json("neff.json", container(name).member("neff.json").unwrap()).unwrap() };
    let x: (&str, &str, &[i64]) = ("x", "float16", &[128, 256]);
    let y: (&str, &str, &[i64]) = ("y", "float16", &[256, 128]);
    let output: (&str, &str, &[i64]) = ("output0", "float16", &[128, 128]);
    assert_eq!(GraphFile::of_one_kelf(&[x, y], &[output], 2), read_graph("nkipy_matmul_small.neff"));
    let wide: (&str, &str, &[i64]) = ("input0", "float32", &[2048, 2048]);
    let tall: (&str, &str, &[i64]) = ("input1", "float32", &[2048, 128]);
    let flat: (&str, &str, &[i64]) = ("input2", "float32", &[128, 2048]);
    let last: (&str, &str, &[i64]) = ("input3", "float32", &[2048, 128]);
    let column: (&str, &str, &[i64]) = ("output0", "bfloat16", &[2048, 1]);
    let built = GraphFile::of_one_kelf(&[wide, tall, flat, last], &[column], 1);
    assert_eq!(built, read_graph("autocomp_trn1.neff"));
}

#[test]
fn constants_have_the_size_that_the_definition_gives() {
    let mut n_constants = 0;
    for name in VENDOR.iter().chain(&SYNTHETIC) {
        let container = container(name);
        let bytes = container.member("sg00/def.json").unwrap();
        let definition: Definition = from_json("sg00/def.json", bytes).unwrap();
        for variable in definition.var.values().filter(|variable| variable.kind == VariableKind::File) {
            let member = format!("sg00/{}", variable.file_name.as_ref().unwrap());
            let bytes = container.member(&member).unwrap();
            let is_array = member.ends_with(".npy");
            // The reduced vendor files have their constants zeroed, header and all.
            if VENDOR.contains(name) || !is_array {
                assert_eq!(bytes.len() as u64 - 128 * u64::from(is_array), variable.size.unwrap(), "{name}: {member}");
            } else {
                let array = npy::read(&member, bytes).unwrap();
                assert_eq!(array.data.len() as u64, variable.size.unwrap(), "{name}: {member}");
                assert_eq!(array.n_elements() * 4, variable.size.unwrap(), "{name}: {member}");
            }
            n_constants += 1;
        }
    }
    assert_eq!(n_constants, 16);
}

#[test]
fn engine_names_come_from_the_definition() {
    let bytes = container("synthetic/lnc1.neff").member("sg00/def.json").unwrap().to_vec();
    let definition: Definition = from_json("def.json", &bytes).unwrap();
    let mut ours = Definition::with_default_names();
    for engine in Engine::ALL {
        assert_eq!(definition.engine_instr(engine), ours.engine_instr(engine));
        assert_eq!(definition.engine_json(engine), ours.engine_json(engine));
    }
    ours.dma_queue = definition.dma_queue.clone();
    ours.var = definition.var.clone();
    assert_eq!(ours, definition);
}

#[test]
fn feature_bits_have_their_names() {
    let names = |mask| features(mask).into_iter().map(|feature| feature.name).collect::<Vec<_>>();
    assert_eq!(names(0xc00), ["virtual-core", "v3-2x-4x-dve-perf-mode"]);
    assert_eq!(names(0x9000), ["bit 12 (unnamed)", "bit 15 (unnamed)"]);
    assert_eq!(names(1 << 62), ["neffuse-open-encoding"]);
    assert_eq!(names(0), Vec::<String>::new());
}

#[test]
fn the_text_says_that_vendor_streams_are_opaque() {
    let text = Report::of(&container("fused_attention_fp32_s512.neff")).to_string();
    for line in [
        "  Data Size (bytes)       10240",
        "  Build Version",
        "  Enabled Features        virtual-core, v3-2x-4x-dve-perf-mode",
        "  Target                  cayman",
        "  3     NeuronCore  sg00",
        "                          kernel_out          262144  OUT     NC      [512 128]      float32   false",
    ] {
        assert!(text.lines().any(|printed| printed == line), "no line {line:?} in\n{text}");
    }
    assert!(text.contains("not published, so they are opaque here"), "{text}");
    assert!(!text.contains("Warnings"), "{text}");
}
