//! Values to run a graph on: recorded ones beside its file, or made from a seed; an archive of
//! torch.export has its own parameters.
//!
//! Made values depend on the graph and the seed alone, on every machine. They suit what the graph
//! does with them: indices stay in range, arguments of roots and logarithms are positive.

use std::path::{Path, PathBuf};

use ir::graph::InputRole;
use ir::ops::OpClass;
use ir::reference::Value;
use ir::{Dtype, Graph, Node, Op, TensorType, ValueId};

use crate::error::Error;
use crate::import::is_archive;
use crate::import::pt2::ArchiveFile;
use crate::npz::Archive;

/// Seed of made values unless a caller wants others.
pub const DEFAULT_SEED: u64 = 2026;

/// Values for all inputs of a graph, and where they exist for its outputs.
#[derive(Clone, Debug)]
pub struct Samples {
    /// By position in the graph's inputs.
    pub inputs: Vec<Value>,
    /// What PyTorch gave for these inputs, by position in the outputs; `None` where nothing was
    /// recorded.
    pub outputs: Option<Vec<Option<Value>>>,
    /// The file that the values come from.
    pub recorded_in: Option<PathBuf>,
}

/// The archive that belongs to a graph file: `x.inf.io.npz` beside `x.inf.json`.
pub fn recorded_path(graph_file: &Path) -> PathBuf {
    graph_file.with_extension("io.npz")
}

/// Recorded values where there are some beside the file, else made ones; for an archive, its
/// parameters and made inputs.
///
/// # Errors
/// When recorded values cannot be read or do not fit the graph.
pub fn samples_for(graph: &Graph, graph_file: &Path) -> Result<Samples, Error> {
    if is_archive(graph_file) {
        return stored(graph, graph_file);
    }
    let path = recorded_path(graph_file);
    match std::fs::read(&path) {
        Ok(bytes) => recorded(graph, &bytes, &path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(seeded(graph, DEFAULT_SEED)),
        Err(error) => Err(Error::Input(format!("{}: {error}", path.display()))),
    }
}

fn recorded(graph: &Graph, bytes: &[u8], path: &Path) -> Result<Samples, Error> {
    let fail = |message: String| Error::Input(format!("{}: {message}", path.display()));
    let mut archive = Archive::open(bytes).map_err(|error| fail(error.message))?;
    let mut tensor = |name: String, ty: &TensorType| {
        let bytes = archive.tensor(&name, ty).map_err(|error| fail(error.message))?;
        Value::from_bytes(ty, &bytes).map_err(|error| fail(error.message))
    };
    let mut inputs = Vec::new();
    for (position, input) in graph.inputs.iter().enumerate() {
        inputs.push(tensor(format!("in_{position}"), graph.ty(input.value))?);
    }
    let mut outputs = Vec::new();
    for (position, output) in graph.outputs.iter().enumerate() {
        let value = output.value.map(|value| tensor(format!("out_{position}"), graph.ty(value))).transpose()?;
        outputs.push(value);
    }
    Ok(Samples { inputs, outputs: Some(outputs), recorded_in: Some(path.to_owned()) })
}

fn stored(graph: &Graph, path: &Path) -> Result<Samples, Error> {
    let mut samples = seeded(graph, DEFAULT_SEED);
    ArchiveFile::open(path)?.with_tensors(|tensors| {
        let fail = |message: String| Error::Input(format!("{}: {message}", path.display()));
        for (input, value) in graph.inputs.iter().zip(&mut samples.inputs) {
            if input.role == InputRole::Static {
                let ty = graph.ty(input.value);
                let elements = tensors.elements(&input.name).map_err(Error::Input)?;
                *value = Value::from_bytes(ty, &elements)
                    .map_err(|error| fail(format!("tensor `{}`: {error}", input.name)))?;
            }
        }
        Ok(())
    })?;
    Ok(samples)
}

/// Made values.
pub fn seeded(graph: &Graph, seed: u64) -> Samples {
    let needs = needs(graph);
    let inputs = graph.inputs.iter().enumerate().map(|(position, input)| {
        let ty = graph.ty(input.value);
        let stream = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(position as u64);
        made_value(ty, needs[input.value.index()], &mut SplitMix { state: stream })
    });
    Samples { inputs: inputs.collect(), outputs: None, recorded_in: None }
}

/// What the graph needs of a value for its result to be meaningful.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Need {
    /// Integers must be below this.
    below: Option<usize>,
    positive: bool,
}

impl Need {
    fn join(&mut self, other: Need) {
        self.below = match (self.below, other.below) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.positive |= other.positive;
    }
}

/// What each value needs, by value, carried from users to operands through ops that move elements
/// or convert them.
fn needs(graph: &Graph) -> Vec<Need> {
    let mut needs = vec![Need::default(); graph.n_values()];
    for (_, node) in graph.nodes().rev() {
        let of_result = needs[node.results[0].index()];
        for (position, &operand) in node.operands.iter().enumerate() {
            let need = operand_need(graph, node, position, of_result);
            needs[operand.index()].join(need);
        }
    }
    needs
}

fn operand_need(graph: &Graph, node: &Node, position: usize, of_result: Need) -> Need {
    let size = |value: ValueId, axis: usize| graph.ty(value).shape.get(axis).copied();
    let carries = node.op.class() == OpClass::Movement || matches!(node.op, Op::Cast(_) | Op::Add(_) | Op::Where(_));
    match (&node.op, position) {
        (Op::ScatterRows(op), 1) => Need { below: size(node.operands[0], op.axis), positive: false },
        (Op::ScatterRows(_), 0 | 2) => of_result,
        (Op::GatherRows(_), 1) => Need { below: size(node.operands[0], 0), positive: false },
        (Op::Gather(gather), 1) => Need { below: size(node.operands[0], gather.axis), positive: false },
        (Op::Index(index), 1..) => Need { below: size(node.operands[0], index.axes[position - 1]), positive: false },
        (Op::GatherRows(_) | Op::Gather(_) | Op::Index(_), 0) => of_result,
        (Op::Sqrt(_) | Op::Rsqrt(_) | Op::Log(_), _) => Need { below: None, positive: true },
        (_, _) if carries => of_result,
        (_, _) => Need::default(),
    }
}

fn made_value(ty: &TensorType, need: Need, random: &mut SplitMix) -> Value {
    let n_elements = ty.n_elements();
    match ty.dtype {
        Dtype::F64 | Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::F8E4m3 | Dtype::F8E5m2 => {
            let lane = |random: &mut SplitMix| {
                let number = random.normal();
                if need.positive { number.abs() + 0.1 } else { number }
            };
            Value::floats(&ty.shape, (0..n_elements).map(|_| lane(random)).collect::<Vec<_>>()).rounded(ty.dtype)
        }
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 => {
            // Integers of no known use are masks more often than not.
            let below = need.below.unwrap_or(2).max(1) as u64;
            let lanes = (0..n_elements).map(|_| (random.next() % below.min(64)) as i64).collect::<Vec<_>>();
            Value::ints(&ty.shape, lanes).rounded(ty.dtype)
        }
        Dtype::Bool => Value::bools(&ty.shape, (0..n_elements).map(|_| random.next() & 1 == 1).collect::<Vec<_>>()),
    }
}

/// Sebastiano Vigna's splitmix64.
struct SplitMix {
    state: u64,
}

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// About normal with deviation 1: the scaled sum of four uniform numbers, which needs no
    /// function whose last bit differs between platforms.
    fn normal(&mut self) -> f64 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
        // Four numbers in 0..65536 have mean 131,070 and deviation 37,837.
        (sum as f64 - 131_070.0) / 37_837.0
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ir::graph::InputRole;
    use ir::ops::{GatherRows, Reshape, Rsqrt};
    use ir::reference::{Lanes, Rounding, evaluate};
    use ir::{Dtype, Graph, TensorType};

    use super::{recorded_path, seeded};

    #[test]
    fn the_archive_stands_beside_the_graph() {
        assert_eq!(recorded_path(Path::new("a/x.inf.json")), Path::new("a/x.inf.io.npz"));
        assert_eq!(recorded_path(Path::new("x.ir")), Path::new("x.io.npz"));
    }

    #[test]
    fn made_values_suit_the_graph_and_depend_on_the_seed_alone() {
        let mut graph = Graph::new("g");
        let table = graph.push_input("table", TensorType::new(Dtype::F32, [3, 2]), InputRole::Static);
        let ids = graph.push_input("ids", TensorType::new(Dtype::I64, [64]), InputRole::Dynamic);
        let ids = graph.push_value_of(Reshape { shape: [8, 8].into_iter().collect() }.into(), &[ids], &[]).unwrap();
        let rows = graph.push_value_of(GatherRows.into(), &[table, ids], &[]).unwrap();
        let roots = graph.push_value_of(Rsqrt.into(), &[rows], &[]).unwrap();
        graph.push_output(roots);
        let samples = seeded(&graph, 1);
        let outputs = evaluate(&graph, &samples.inputs, Rounding::PerOp).unwrap();
        let Some(Lanes::Float(lanes)) = outputs[0].as_ref().map(|value| &value.lanes) else { panic!("floats") };
        assert!(lanes.iter().all(|lane| lane.is_finite()));
        assert_eq!(seeded(&graph, 1).inputs, samples.inputs);
        assert_ne!(seeded(&graph, 2).inputs, samples.inputs);
    }
}
