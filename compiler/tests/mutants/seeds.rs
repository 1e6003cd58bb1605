//! Writes the seeds of fuzzing and of mutation: after a change of a format,
//! `cargo test -p compiler --test mutants -- --ignored`.

use std::path::{Path, PathBuf};

use compiler::npz;
use compiler::pipeline::{Options, Unwatched, compile};
use ir::Graph;
use ir::program::Engine;
use ir::text::parse_graph;

use crate::readers::npz_types;

/// Cases of `tests/cases` that are small enough to start from, compiled or not.
const CASES: [&str; 6] = [
    "attention",
    "gather_rows_and_integers",
    "movement",
    "rms_norm",
    "reductions_over_leading_axes",
    "scalars_and_empty",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn put(kind: &str, name: &str, bytes: &[u8]) {
    let folder = repository().join("fuzz/seeds").join(kind);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}

#[test]
#[ignore = "writes fuzz/seeds"]
fn write_seeds() {
    for name in ["elementwise_broadcast", "mlp", "rms_norm_builtin_bf16", "rms_norm_naive_bf16", "softmax_builtin_f32"]
    {
        let path = repository().join(format!("tests/graphs/{name}.inf.json"));
        put("fxg", &format!("{name}.json"), &std::fs::read(path).unwrap());
    }
    for name in ["stored.pt2", "updated.pt2"] {
        put("pt2", name, &std::fs::read(repository().join("tests/graphs/import/pt2").join(name)).unwrap());
    }
    for name in CASES {
        let text = std::fs::read_to_string(repository().join(format!("tests/cases/{name}.ir"))).unwrap();
        put("ir_graph", &format!("{name}.ir"), text.as_bytes());
        put_compiled(name, &parse_graph(name, &text).unwrap());
    }
    put_archives();
}

/// The program, the NEFF without the zeros behind its archive, and the streams of a graph.
fn put_compiled(name: &str, graph: &Graph) {
    let compiled = compile(graph, &Options::default(), &mut Unwatched).unwrap();
    let program = compiled.program.unwrap();
    if program.instructions.len() > 100 {
        return;
    }
    put("ir_program", &format!("{name}.ir"), program.to_string().as_bytes());
    let neff = compiled.neff.unwrap();
    let end = neff.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    // The last bytes of a gzip stream are the size of its content, which may end in zeros.
    put("neff", &format!("{name}.neff"), &neff[..(end + 4).min(neff.len())]);
    let container = neff::container::read(&neff).unwrap();
    for engine in Engine::ALL {
        let member = format!("sg00/{}.bin", neff::members::engine_file_stem(engine));
        let stream = container.member(&member).unwrap();
        if !stream.is_empty() {
            let bytes: Vec<u8> = [engine as u8].iter().chain(stream.iter().take(8 * 256)).copied().collect();
            put("instruction", &format!("{name}_{}", engine.name()), &bytes);
        }
    }
}

fn put_archives() {
    let types = npz_types();
    let contents: Vec<Vec<u8>> = types.iter().map(|(_, ty)| vec![1; ty.size_bytes()]).collect();
    let tensors = types.iter().zip(&contents).map(|((name, ty), bytes)| (*name, ty, bytes.as_slice()));
    put("npz", "stored.npz", &npz::write(tensors).unwrap());
    // As NumPy writes them: compressed, column-major, big-endian, and with a header of version 2.
    let header = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    let versions = [(1, header(">f4", "True", "(2, 3)")), (2, header("<i8", "False", "(4,)"))];
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (position, (version, header)) in versions.iter().enumerate() {
        use std::io::Write;
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated)
            .last_modified_time(zip::DateTime::default());
        zip.start_file(format!("in_{position}.npy"), options).unwrap();
        let mut array = b"\x93NUMPY".to_vec();
        array.extend([*version, 0]);
        array.extend(&(header.len() as u32).to_le_bytes()[..if *version == 1 { 2 } else { 4 }]);
        array.extend(header.bytes());
        array.extend(vec![2; [24, 32][position]]);
        zip.write_all(&array).unwrap();
    }
    put("npz", "deflated.npz", &zip.finish().unwrap().into_inner());
}
