//! A compiled program with values to run it on, and what becomes of it when it is damaged. The program
//! is a whole one, or the kernel that all calls of an outlined one apply.

use std::cell::OnceCell;

use compiler::samples::{DEFAULT_SEED, Samples, seeded};
use compiler::strided::{View, ViewMut};
use compiler::verdict::Standard;
use ir::program::Module;
use ir::reference::Value;
use ir::target::TargetName;
use ir::types::packed_strides;
use ir::{Graph, Program, TensorType};
use passes::Numerics;
use simulator::{FindingKind, Machine, TensorInfo};

use crate::support::{
    GRAPHS, cases, compiled, document, imported, made, made_for_model, options, recorded, sample_graph, stacked,
};

/// Values beyond the first ones, for damage that those do not show.
const OTHER_SEEDS: [u64; 2] = [11, 12];

/// What becomes of a damaged program.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It does not load, or its checks find this.
    Reported(Vec<FindingKind>),
    /// Its checks find nothing; its values are wrong.
    WrongValues,
    /// Its checks find nothing, and its values pass.
    Harmless {
        /// Every output is the undamaged program's, bit by bit, on several sets of values.
        identical: bool,
    },
}

pub struct Subject {
    pub name: String,
    pub program: Program,
    /// The calls, where the program is their kernel.
    pub module: Option<Module>,
    packaged: Graph,
    graph: Graph,
    inputs: Vec<Option<TensorInfo>>,
    outputs: Vec<Option<TensorInfo>>,
    first: Samples,
    /// Values from a seed.
    others: fn(&Graph, u64) -> Samples,
    /// By set of values.
    trials: [OnceCell<Trial>; 1 + OTHER_SEEDS.len()],
}

/// One set of values.
struct Trial {
    /// Device buffers of the inputs.
    buffers: Vec<Vec<u8>>,
    standard: Standard,
    /// What the undamaged program gives.
    outputs: Vec<Option<Value>>,
    /// The undamaged program passes. On values without a recorded standard it may miss the
    /// tolerance by a little; there only equal bits count.
    decides: bool,
}

/// Products whose tiles are made in passes over rows, of which the activation's stay on chip.
const BLOCKED: &str = r#"graph @blocked {
  input %0 "x": bf16[300, 640] dynamic
  input %1 "gate": bf16[1200, 640] static
  input %2 "up": bf16[1200, 640] static
  input %3 "down": bf16[640, 1200] static
  %4 = matmul %0, %1 {transpose_lhs = 0, transpose_rhs = 1, dtype = bf16} : bf16[300, 1200]
  %5 = silu %4 : bf16[300, 1200]
  %6 = matmul %0, %2 {transpose_lhs = 0, transpose_rhs = 1, dtype = bf16} : bf16[300, 1200]
  %7 = mul %5, %6 : bf16[300, 1200]
  %8 = matmul %7, %3 {transpose_lhs = 0, transpose_rhs = 1, dtype = f32} : f32[300, 640]
  output %8 ""
}
"#;

/// A product whose sum is cut, with parts added up in SBUF.
const ADDED: &str = r#"graph @added {
  input %0 "x": bf16[640, 4736] dynamic
  input %1 "w": bf16[1056, 4736] static
  %2 = matmul %0, %1 {transpose_lhs = 0, transpose_rhs = 1, dtype = f32} : f32[640, 1056]
  output %2 ""
}
"#;

/// Every program of the test suite on one target, and such as it has no small graph for.
pub fn subjects(target: TargetName) -> impl Iterator<Item = Subject> {
    let graphs = GRAPHS.into_iter().map(move |name| {
        let graph = sample_graph(name);
        let samples = recorded(name, &graph);
        Subject::new(name.to_owned(), graph, samples, target)
    });
    let cases = cases().into_iter().map(move |(name, graph)| {
        let samples = made(&graph);
        Subject::new(name, graph, samples, target)
    });
    let further: [fn() -> Graph; 2] = [|| parsed(BLOCKED), four_layers];
    graphs.chain(cases).chain(further.into_iter().map(move |graph| Subject::of(graph(), target)))
}

fn four_layers() -> Graph {
    let layer = stacked::scaled(&document("benches/graphs/llama7b_block_core.inf.json"), &stacked::SMALL_LLAMA);
    imported(&stacked::stacked(&layer, 4, |_, _| {}))
}

/// Programs that take seconds to run.
pub fn large_subjects(target: TargetName) -> impl Iterator<Item = Subject> {
    std::iter::once(Subject::of(parsed(ADDED), target))
}

fn parsed(text: &str) -> Graph {
    ir::text::parse_graph("subject.ir", text).expect("the text is a graph")
}

impl Subject {
    fn of(graph: Graph, target: TargetName) -> Subject {
        let samples = made_for_model(&graph, DEFAULT_SEED);
        Subject { others: made_for_model, ..Subject::new(graph.name.clone(), graph, samples, target) }
    }

    fn new(name: String, graph: Graph, first: Samples, target: TargetName) -> Subject {
        let compiled = compiled(&graph, &options(target, Numerics::Contract));
        let neff = compiled.neff.expect("the pipeline runs to its end");
        let machine = Machine::load(&neff).expect("the file is whole");
        let module = compiled.outlined.and_then(|outlined| outlined.module);
        let program = match &module {
            Some(module) => {
                assert_eq!(module.kernels.len(), 1, "{name}: one kernel is damaged, in all calls");
                module.kernels[0].program.clone()
            }
            None => compiled.program.expect("the pipeline runs to its end"),
        };
        let (inputs, outputs) = (machine.inputs(), machine.outputs());
        // Of an outlined graph the one that was packaged, with the steps of its inputs.
        let packaged = compiled.graph;
        let (others, trials) = (seeded, Default::default());
        Subject { name, program, module, packaged, graph, inputs, outputs, first, others, trials }
    }

    /// The machine of a damaged program; `None` where it does not load.
    pub fn machine(&self, damaged: &Program) -> Option<Machine> {
        let Some(module) = &self.module else { return Machine::from_program(damaged).ok() };
        let mut module = module.clone();
        module.kernels[0].program = damaged.clone();
        self.machine_of_module(&module)
    }

    fn machine_of_module(&self, module: &Module) -> Option<Machine> {
        let kernel = codegen::link_module(module).ok()?;
        let bits = vec![32; self.packaged.inputs.len()];
        Machine::load(&codegen::package_module(&self.packaged, module, &kernel, bits).ok()?).ok()
    }

    /// What becomes of the calls of a damaged module.
    pub fn fate_of_module(&self, damaged: &Module) -> Fate {
        self.fate_on(self.machine_of_module(damaged))
    }

    /// What becomes of the program with this damage.
    pub fn fate(&self, damaged: &Program) -> Fate {
        self.fate_on(self.machine(damaged))
    }

    fn fate_on(&self, machine: Option<Machine>) -> Fate {
        let Some(machine) = machine else { return Fate::Reported(Vec::new()) };
        let findings = machine.check();
        if !findings.is_empty() {
            return Fate::Reported(findings.findings.iter().map(|finding| finding.kind).collect());
        }
        let mut identical = true;
        for number in 0..self.trials.len() {
            let trial = self.trial(number);
            let Some(outputs) = self.outputs_of(&machine, &trial.buffers) else { return Fate::WrongValues };
            let is_same = outputs == trial.outputs;
            if !is_same && trial.decides && !trial.standard.judge(&self.graph, &outputs).passes() {
                return Fate::WrongValues;
            }
            identical &= is_same;
        }
        Fate::Harmless { identical }
    }

    fn trial(&self, number: usize) -> &Trial {
        self.trials[number].get_or_init(|| {
            let samples = match number {
                0 => self.first.clone(),
                _ => (self.others)(&self.graph, OTHER_SEEDS[number - 1]),
            };
            let standard = Standard::of(&self.graph, &samples).expect("the graph evaluates");
            let buffers = self.buffers(&samples.inputs);
            let machine = self.machine(&self.program).expect("the undamaged program loads");
            let outputs = self.outputs_of(&machine, &buffers).expect("the undamaged program runs");
            let decides = standard.judge(&self.graph, &outputs).passes();
            assert!(decides || number > 0, "{}: the undamaged program is wrong", self.name);
            Trial { buffers, standard, outputs, decides }
        })
    }

    /// Inputs as the device wants them; those that the program does not read are empty.
    fn buffers(&self, values: &[Value]) -> Vec<Vec<u8>> {
        let buffer = |(info, value): (&Option<TensorInfo>, &Value)| {
            let Some(info) = info else { return Vec::new() };
            let ty = TensorType { dtype: info.dtype, shape: info.shape.clone() };
            let packed = value.to_bytes(ty.dtype).expect("inputs are of their types");
            let mut bytes = vec![0; info.size_bytes as usize];
            let view = View { ty: &ty, strides: &packed_strides(&ty.shape), bytes: &packed };
            view.copy_to(&mut ViewMut { ty: &ty, strides: &strides_of(info), bytes: &mut bytes });
            bytes
        };
        self.inputs.iter().zip(values).map(buffer).collect()
    }

    /// `None` where the program does not run.
    fn outputs_of(&self, machine: &Machine, buffers: &[Vec<u8>]) -> Option<Vec<Option<Value>>> {
        let given = |(info, bytes): (&Option<TensorInfo>, &'_ Vec<u8>)| info.is_some() && !bytes.is_empty();
        let inputs: Vec<Option<&[u8]>> =
            self.inputs.iter().zip(buffers).map(|pair| given(pair).then_some(pair.1.as_slice())).collect();
        let inputs = &inputs[..machine.inputs().len().min(inputs.len())];
        let results = machine.run(inputs).ok()?;
        let value = |(position, tensor): (usize, &Option<simulator::TensorBytes>)| {
            let (info, bytes) = (self.outputs[position].as_ref()?, &tensor.as_ref()?.bytes);
            let ty = TensorType { dtype: info.dtype, shape: info.shape.clone() };
            let mut packed = vec![0; ty.size_bytes()];
            let view = View { ty: &ty, strides: &strides_of(info), bytes };
            view.copy_to(&mut ViewMut { ty: &ty, strides: &packed_strides(&ty.shape), bytes: &mut packed });
            Value::from_bytes(&ty, &packed).ok()
        };
        Some(results.tensors.iter().enumerate().map(value).collect())
    }
}

fn strides_of(info: &TensorInfo) -> Vec<usize> {
    match &info.strides {
        Some(strides) => strides.iter().map(|&stride| stride as usize).collect(),
        None => packed_strides(&info.shape).to_vec(),
    }
}
