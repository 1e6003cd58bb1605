//! Files of a few bytes that claim gigabytes: refused, or read in the memory that the file's own size allows.
//!
//! The bound of every reader is 64 MiB and twice what the file unpacks to, which may be 32 times the file. It is
//! asserted on the command as a whole. Nothing may be left where
//! output would have gone.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use compiler::pipeline::{Options, Unwatched, compile};
use neff::container::{Container, Draft, Members, read, write};
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;

const FIXED_KIB: u64 = 64 << 10;

/// How a command ended.
struct Ended {
    exit_code: i32,
    peak_kib: u64,
    stderr: String,
}

/// Runs the command and watches its largest resident set, which the kernel keeps per process image.
fn neffuse(folder: &Path, arguments: &[&str]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_neffuse"))
        .args(arguments)
        .current_dir(folder)
        .env("NEFFUSE_CACHE_DIR", folder.join("cache"))
        .stdout(Stdio::null())
        .stderr(Stdio::from(std::fs::File::create(folder.join("stderr")).unwrap()))
        .spawn()
        .expect("the command starts");
    let status_file = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    let status = loop {
        // A process that has ended has no memory to tell of.
        let status = std::fs::read_to_string(&status_file).unwrap_or_default();
        let peak =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak_kib = peak.unwrap_or(0).max(peak_kib);
        if let Some(status) = child.try_wait().expect("the command is waited for") {
            break status;
        }
        std::thread::sleep(Duration::from_micros(200));
    };
    let exit_code = status.code().unwrap_or_else(|| panic!("the command was ended: {status}"));
    Ended { exit_code, peak_kib, stderr: std::fs::read_to_string(folder.join("stderr")).unwrap() }
}

/// What a command must say to a file.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Expect {
    /// Exit code 1 or 2, a diagnostic, no output.
    Refused,
    /// Success: the file is odd, not wrong.
    Accepted,
    /// Either.
    Answered,
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Runs commands on a file, `@` standing for its name, and checks how each ends.
    fn expect(&self, name: &str, bytes: &[u8], expect: Expect, commands: &[&str]) {
        self.put(name, bytes);
        for command in commands {
            let arguments: Vec<&str> = command.split(' ').map(|word| if word == "@" { name } else { word }).collect();
            let Ended { exit_code, peak_kib, stderr } = neffuse(self.path(), &arguments);
            let what =
                format!("`{command}` on {name} ({} bytes): exit {exit_code}, {peak_kib} KiB\n{stderr}", bytes.len());
            match expect {
                Expect::Refused => assert!(matches!(exit_code, 1 | 2), "{what}"),
                Expect::Accepted => assert_eq!(exit_code, 0, "{what}"),
                Expect::Answered => assert!(matches!(exit_code, 0..=2), "{what}"),
            }
            if exit_code != 0 {
                let first = stderr.lines().next().unwrap_or_default();
                assert!(first.starts_with("error["), "{what}");
                assert!(first.len() < 2000, "{what}");
                assert!(!self.path().join("out").exists(), "output of a command that failed: {what}");
            }
            let _ = std::fs::remove_file(self.path().join("out"));
            let _ = std::fs::remove_dir_all(self.path().join("out"));
            let allowed_kib = FIXED_KIB + 2 * 32 * bytes.len() as u64 / 1024;
            assert!(peak_kib <= allowed_kib, "{allowed_kib} KiB are allowed: {what}");
        }
    }
}

const ON_GRAPHS: &[&str] = &["compile @ -o out", "check @"];
const ON_NEFFS: &[&str] = &[
    "info @",
    "info @ --report json",
    "objdump @",
    "profile @",
    "unpack @ out",
    "run @ --inputs in.npz --outputs out",
];

fn tensor(shape: &[u64]) -> Value {
    let mut stride = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        stride[axis - 1] = stride[axis] * shape[axis];
    }
    json!({"shape": shape, "stride": stride, "dtype": "float32", "device": "cpu"})
}

fn document(inputs: &[Value], nodes: &[Value], output: u64) -> Vec<u8> {
    let inputs: Vec<Value> =
        inputs.iter().enumerate().map(|(id, out)| json!({"id": id, "name": format!("x{id}"), "out": out})).collect();
    json!({"format": "fxg-json/1", "name": "g", "inputs": inputs, "nodes": nodes, "outputs": [{"ref": output}]})
        .to_string()
        .into_bytes()
}

fn node(id: u64, target: &str, args: &Value, out: &Value) -> Value {
    json!({"id": id, "name": format!("n{id}"), "target": target, "args": args, "out": out})
}

#[test]
fn graphs_that_claim_gigabytes() {
    let folder = Folder::new();
    let large = tensor(&[65536, 65536]);
    let full = node(1, "aten.full.default", &json!([[65536, 65536], 1.5]), &large);
    folder.expect("full.json", &document(&[], &[full], 1), Expect::Refused, ON_GRAPHS);
    let expand = node(1, "aten.expand.default", &json!([{"ref": 0}, [65536, 65536]]), &json!(null));
    let exp = node(2, "aten.exp.default", &json!([{"ref": 1}]), &large);
    folder.expect("expand.json", &document(&[tensor(&[1, 1])], &[expand, exp], 2), Expect::Refused, ON_GRAPHS);
    let range = node(1, "aten.arange.default", &json!([2_147_483_000]), &json!(null));
    folder.expect("range.json", &document(&[], &[range], 1), Expect::Refused, ON_GRAPHS);
    let gigabytes = tensor(&[16384, 65536]);
    let exp = node(1, "aten.exp.default", &json!([{"ref": 0}]), &gigabytes);
    folder.expect("input.json", &document(&[gigabytes], &[exp], 1), Expect::Refused, &["check @"]);
    let strided = json!({"shape": [2, 2], "stride": [1 << 30, 1], "dtype": "float32"});
    let exp = node(1, "aten.exp.default", &json!([{"ref": 0}]), &tensor(&[2, 2]));
    folder.expect("strided.json", &document(&[strided], &[exp], 1), Expect::Refused, &["check @"]);
    folder.expect(
        "frozen.json",
        &document(&[tensor(&[16384, 65536])], &[], 0),
        Expect::Refused,
        &["compile @ --freeze -o out"],
    );
}

#[test]
fn graphs_whose_text_takes_much_memory() {
    let folder = Folder::new();
    let repeated = |text: &str| {
        let args = text.repeat(300_000);
        let args = args.trim_end_matches(',');
        format!(
            r#"{{"format": "fxg-json/1", "inputs": [], "outputs": [], "nodes": [
            {{"id": 1, "name": "n", "target": "aten.cat.default", "args": [{args}]}}]}}"#
        )
    };
    folder.expect("lists.json", repeated("[],").as_bytes(), Expect::Refused, ON_GRAPHS);
    folder.expect("objects.json", repeated(r#"{"":0},"#).as_bytes(), Expect::Refused, ON_GRAPHS);
    folder.expect("depth.json", "[".repeat(1 << 20).as_bytes(), Expect::Refused, ON_GRAPHS);
    folder.expect("faults.ir", "~".repeat(1 << 20).as_bytes(), Expect::Refused, ON_GRAPHS);
    let line: String = (1..20_000).map(|node| format!("%{node} = relu %{node} : f32[4] ")).collect();
    folder.expect("line.ir", format!("graph @g {{ {line} }}").as_bytes(), Expect::Refused, ON_GRAPHS);
    // Thirty-two lines that double a value each.
    let doubled: String = (1..33)
        .map(|node| format!("%{node} = concat %{0}, %{0} {{axis = 0}} : f32[{1}]\n", node - 1, 4_u64 << node))
        .collect();
    let doubled = format!("graph @g {{\ninput %0 \"x\": f32[4] dynamic\n{doubled}output %32 \"\"\n}}");
    folder.expect("doubled.ir", doubled.as_bytes(), Expect::Refused, ON_GRAPHS);
    for (name, bytes) in
        [("empty", &b""[..]), ("zeros", &[0; 4096]), ("no-text", b"\xff\xfe{}"), ("nan", b"{\"format\": NaN}")]
    {
        folder.expect(&format!("{name}.json"), bytes, Expect::Refused, ON_GRAPHS);
        folder.expect(&format!("{name}.ir"), bytes, Expect::Refused, ON_GRAPHS);
    }
}

/// A small NEFF, and the inputs that it takes.
fn small_neff(folder: &Folder) -> Vec<u8> {
    let text = "graph @g {\n  input %0 \"x\": f32[4, 4] dynamic\n  %1 = exp %0 : f32[4, 4]\n  output %1 \"\"\n}\n";
    let graph = ir::text::parse_graph("g.ir", text).unwrap();
    let ty = ir::TensorType::new(ir::Dtype::F32, [4, 4]);
    folder.put("in.npz", &compiler::npz::write([("in_0", &ty, &[0; 64][..])]).unwrap());
    compile(&graph, &Options::default(), &mut Unwatched).unwrap().neff.unwrap()
}

/// The NEFF with other members.
fn edited(neff: &[u8], edit: impl FnOnce(&mut Members)) -> Vec<u8> {
    let Container { header, mut members, .. } = read(neff).unwrap();
    edit(&mut members);
    let name = header.name_text().into_owned();
    let draft = Draft { name, feature_bits: header.feature_bits, lnc_size: header.lnc_size, members };
    bomb(neff, &write(&draft).unwrap())
}

/// The archive packed as tightly as it gets: the writer stores what its own reader would take for a bomb.
fn bomb(neff: &[u8], written: &[u8]) -> Vec<u8> {
    let mut archive = written[1024..].to_vec();
    if archive.starts_with(&[0x1f, 0x8b]) {
        use std::io::Read;
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&archive[..]).read_to_end(&mut unpacked).unwrap();
        archive = unpacked;
    }
    let mut encoder = flate2::write::GzEncoder::new(neff[..1024].to_vec(), flate2::Compression::best());
    encoder.write_all(&archive).unwrap();
    encoder.finish().unwrap()
}

fn edited_json(neff: &[u8], member: &str, edit: impl FnOnce(&mut Value)) -> Vec<u8> {
    edited(neff, |members| {
        let mut value: Value = serde_json::from_slice(&members[member]).unwrap();
        edit(&mut value);
        members.insert(member.to_owned(), value.to_string().into_bytes());
    })
}

#[test]
fn neffs_that_claim_gigabytes() {
    let folder = Folder::new();
    let neff = small_neff(&folder);
    folder.expect("whole.neff", &neff, Expect::Accepted, ON_NEFFS);
    let zeros = edited(&neff, |members| drop(members.insert("zeros".to_owned(), vec![0; 64 << 20])));
    folder.expect("zeros.neff", &zeros, Expect::Refused, ON_NEFFS);
    let below_floor = edited(&neff, |members| drop(members.insert("zeros".to_owned(), vec![0; 15 << 20])));
    folder.expect("floor.neff", &below_floor, Expect::Accepted, ON_NEFFS);
    let long = |text: &str, start: &str, end: &str| format!("{start}{}{end}", text.repeat((12 << 20) / text.len()));
    for (member, text) in [
        ("neff.json", long("{},", "{\"nodes\": [", "{}]}")),
        ("sg00/def.json", long("[],", "{\"x\": [", "[]]}")),
        ("sg00/SP.json", long("{\"id\":0},", "{\"dma\": [", "{\"id\":0}]}")),
        ("sg00/neffuse_debug.json", long("[],", "{\"locations\": [], \"lines\": {\"pe\": [", "[]]}}")),
        ("sg00/tensor_map.json", long("[],", "{\"x\": {\"extra\": [", "[]]}}")),
    ] {
        let neff = edited(&neff, |members| drop(members.insert(member.to_owned(), text.into_bytes())));
        folder.expect("json.neff", &neff, Expect::Answered, ON_NEFFS);
    }
    let stream = edited(&neff, |members| {
        let record = members["sg00/SP.bin"][..256].to_vec();
        members.insert("sg00/SP.bin".to_owned(), record.repeat(60_000));
    });
    folder.expect("stream.neff", &stream, Expect::Answered, ON_NEFFS);
    let names = edited(&neff, |members| {
        members.extend((0..20_000).map(|number| (format!("m{number}"), Vec::new())));
    });
    folder.expect("members.neff", &names, Expect::Answered, ON_NEFFS);
}

#[test]
fn variables_that_claim_gigabytes() {
    let folder = Folder::new();
    let neff = small_neff(&folder);
    let run = &["run @ --inputs in.npz --outputs out"];
    for kind in ["input", "output"] {
        let large = edited_json(&neff, "sg00/def.json", |definition| {
            let variables = definition["var"].as_object_mut().unwrap().values_mut();
            variables
                .filter(|variable| variable["type"] == kind)
                .for_each(|variable| variable["size"] = json!(8_u64 << 30));
        });
        folder.expect(&format!("{kind}.neff"), &large, Expect::Refused, run);
    }
    for (name, variable) in [
        ("scratch", json!({"type": "tmp-buf", "size": 8_u64 << 30})),
        ("virtual", json!({"type": "virtual", "size": 1, "backing_variable_off": 1_u64 << 35})),
        ("endless", json!({"type": "virtual", "size": u64::MAX, "backing_variable_off": u64::MAX})),
    ] {
        let large = edited_json(&neff, "sg00/def.json", |definition| {
            let variables = definition["var"].as_object_mut().unwrap();
            let mut variable = variable;
            variable["var_id"] = json!(variables.len());
            variables.insert("large".to_owned(), variable);
        });
        folder.expect(&format!("{name}.neff"), &large, Expect::Refused, run);
    }
    for (name, key, value) in [
        ("position", "position", json!(1 << 30)),
        ("shape", "tf_shape", json!([1_u64 << 62, 1_u64 << 62])),
        ("strides", "strides", json!([1_u64 << 62, 1_u64 << 62])),
        ("backwards", "strides", json!([-1, 1])),
    ] {
        let odd = edited_json(&neff, "sg00/tensor_map.json", |map| {
            map.as_object_mut().unwrap().values_mut().for_each(|entry| entry[key] = value.clone());
        });
        folder.expect(&format!("{name}.neff"), &odd, Expect::Answered, ON_NEFFS);
    }
}

/// An array file of zeros with the given header.
fn array(descr: &str, order: &str, shape: &str, n_bytes: usize) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + n_bytes, 0);
    bytes
}

fn zipped(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in files {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated))
            .unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn archives_that_claim_gigabytes() {
    let folder = Folder::new();
    let neff = small_neff(&folder);
    folder.put("small.neff", &neff);
    let run = &["run small.neff --inputs @ --outputs out"];
    let fits = array("'<f4'", "False", "(4, 4)", 64);
    folder.expect("fits.npz", &zipped(&[("in_0.npy", fits.clone())]), Expect::Accepted, run);
    let column_major = array("'>f4'", "True", "(4, 4)", 64);
    folder.expect("column.npz", &zipped(&[("in_0.npy", column_major)]), Expect::Accepted, run);
    for (name, content) in [
        ("bomb", array("'<f4'", "False", "(4, 4)", 256 << 20)),
        ("huge", array("'<f4'", "False", "(4, 99999999999999999999999)", 64)),
        ("overflow", array("'<f4'", "False", "(4611686018427387904, 4611686018427387904)", 64)),
        ("negative", array("'<f4'", "False", "(-4, -4)", 64)),
        ("objects", array("'|O'", "False", "(4, 4)", 128)),
        ("record", array("[('a', '<f4')]", "False", "(4, 4)", 64)),
        ("short", array("'<f4'", "False", "(4, 4)", 63)),
        ("header", b"\x93NUMPY\x02\0\xff\xff\xff\xff".repeat(4)),
    ] {
        folder.expect(&format!("{name}.npz"), &zipped(&[("in_0.npy", content)]), Expect::Refused, run);
    }
    for (name, bytes) in [("empty", Vec::new()), ("none", zipped(&[])), ("zeros", vec![0; 4096])] {
        folder.expect(&format!("{name}.npz"), &bytes, Expect::Refused, run);
    }
    // An end record that counts more entries than there are bytes.
    let mut counts = zipped(&[("in_0.npy", fits)]);
    let end = counts.len() - 22;
    counts[end + 8..end + 12].fill(0xff);
    folder.expect("counts.npz", &counts, Expect::Refused, run);
}

#[test]
fn a_long_chain_of_nodes_needs_no_deep_stack() {
    let folder = Folder::new();
    let shape = tensor(&[4]);
    let nodes: Vec<Value> = (1..30_000)
        .map(|id| {
            node(id, ["aten.neg.default", "aten.exp.default"][id as usize % 2], &json!([{"ref": id - 1}]), &shape)
        })
        .collect();
    folder.put("chain.json", &document(std::slice::from_ref(&shape), &nodes, 29_999));
    let Ended { exit_code, peak_kib: _, stderr } = neffuse(folder.path(), &["compile", "chain.json", "-o", "out"]);
    assert_eq!(exit_code, 0, "{stderr}");
}
