//! A compiled program with values to run it on, and what becomes of it when it is damaged.

use std::cell::OnceCell;

use compiler::samples::{Samples, seeded};
use compiler::strided::{View, ViewMut};
use compiler::verdict::Standard;
use ir::reference::Value;
use ir::target::TargetName;
use ir::types::packed_strides;
use ir::{Graph, Program, TensorType};
use passes::Numerics;
use simulator::{FindingKind, Machine, TensorInfo};

use crate::support::{GRAPHS, cases, compiled, made, options, recorded, sample_graph};

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
    graph: Graph,
    inputs: Vec<Option<TensorInfo>>,
    outputs: Vec<Option<TensorInfo>>,
    first: Samples,
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

/// Every program of the test suite on one target.
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
    graphs.chain(cases)
}

impl Subject {
    fn new(name: String, graph: Graph, first: Samples, target: TargetName) -> Subject {
        let compiled = compiled(&graph, &options(target, Numerics::Contract));
        let neff = compiled.neff.expect("the pipeline runs to its end");
        let machine = Machine::load(&neff).expect("the file is whole");
        let program = compiled.program.expect("the pipeline runs to its end");
        let (inputs, outputs) = (machine.inputs(), machine.outputs());
        Subject { name, program, graph, inputs, outputs, first, trials: Default::default() }
    }

    /// What becomes of the program with this damage.
    pub fn fate(&self, damaged: &Program) -> Fate {
        let Ok(machine) = Machine::from_program(damaged) else { return Fate::Reported(Vec::new()) };
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
                _ => seeded(&self.graph, OTHER_SEEDS[number - 1]),
            };
            let standard = Standard::of(&self.graph, &samples).expect("the graph evaluates");
            let buffers = self.buffers(&samples.inputs);
            let machine = Machine::from_program(&self.program).expect("every tile has an address");
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
