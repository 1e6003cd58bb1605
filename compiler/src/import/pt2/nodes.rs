//! Nodes of an exported graph as captured ones, in order: views and in-place ops go through
//! [`Memory`], assertions that hold are dropped, and regions that change no value are inlined.

use std::collections::{BTreeMap, BTreeSet};

use ir::graph::Location;

use super::arguments::{Reader, recorded, tensor_names};
use super::in_place::{COPY, Functional, functional};
use super::memory::{Memory, TensorId};
use super::schema::{self, Argument as Given, Graph, Name, Node};
use super::source::{module_path, user_line};
use super::views::{Relation, Step, ViewCall};
use crate::import::captured::{Argument, CapturedNode, Recorded, RecordedTensor};

/// What a name stands for.
#[derive(Clone, Debug)]
pub enum Bound {
    Tensor(TensorId),
    /// A number that is not known before the call.
    Symbol(String),
}

/// Names of one graph and the types it records.
pub struct Scope<'a> {
    graph: &'a Graph<'a>,
    names: BTreeMap<&'a str, Bound>,
    /// Names that nodes or outputs read.
    used: BTreeSet<&'a str>,
}

impl<'a> Scope<'a> {
    /// A graph of which nothing is defined yet.
    pub fn new(graph: &'a Graph<'a>) -> Self {
        let arguments = graph.nodes.iter().flat_map(|node| node.inputs.iter().map(|input| &input.arg));
        let used = arguments.chain(&graph.outputs).flat_map(tensor_names).collect();
        Scope { graph, names: BTreeMap::new(), used }
    }

    /// What a name stands for.
    ///
    /// # Errors
    /// When it is not defined yet.
    pub fn get(&self, name: &str) -> Result<&Bound, String> {
        self.names.get(name).ok_or_else(|| format!("`{name}` is not defined before"))
    }

    /// Defines a name.
    ///
    /// # Errors
    /// When it is defined already.
    pub fn define(&mut self, name: &'a str, bound: Bound) -> Result<(), String> {
        match self.names.insert(name, bound) {
            None => Ok(()),
            Some(_) => Err(format!("`{name}` is defined twice")),
        }
    }

    /// What the graph records of a tensor.
    ///
    /// # Errors
    /// When it records nothing, or what no tensor is.
    pub fn recorded(&self, name: &str) -> Result<RecordedTensor, String> {
        let meta = self.graph.tensor_values.get(name).ok_or_else(|| format!("`{name}` has no type"))?;
        recorded(meta).map_err(|reason| format!("`{name}`: {reason}"))
    }

    fn tensor(&self, name: &str) -> Option<TensorId> {
        match self.names.get(name) {
            Some(Bound::Tensor(tensor)) => Some(*tensor),
            Some(Bound::Symbol(_)) | None => None,
        }
    }
}

/// Reads all nodes of a graph whose inputs are defined.
///
/// # Errors
/// The first node that contradicts the graph, by name.
pub fn read_nodes<'a>(memory: &mut Memory, scope: &mut Scope<'a>) -> Result<(), String> {
    for node in &scope.graph.nodes {
        let location = location(node);
        let Location { node: name, target, .. } = &location;
        let context = format!("node `{name}` ({target})");
        NodeReader { memory, scope, node, location }.read().map_err(|reason| format!("{context}: {reason}"))?;
    }
    Ok(())
}

fn location(node: &Node<'_>) -> Location {
    let target = match node.target.split_once("torch.ops.") {
        Some(("", target)) => match target.strip_prefix("higher_order.") {
            Some(name) => format!("hop.{name}"),
            None => target.to_owned(),
        },
        Some(_) | None => format!("py.{}", node.target),
    };
    let first = node.outputs.iter().flat_map(tensor_names).next();
    let name = node.name.as_deref().or(first).unwrap_or_default();
    let (module, line) = (module_path(&node.metadata), user_line(&node.metadata));
    Location { node: name.to_owned(), target, module, line }
}

struct NodeReader<'a, 'b> {
    memory: &'b mut Memory,
    scope: &'b mut Scope<'a>,
    node: &'a Node<'a>,
    location: Location,
}

/// A tensor that a node gives, by name; `None` where it gives none at this position.
type Results<'a> = Vec<Option<(&'a str, RecordedTensor)>>;

impl<'a> NodeReader<'a, '_> {
    fn read(mut self) -> Result<(), String> {
        let target = self.location.target.clone();
        if let Some(graph) = self.inlined(&target) {
            return self.inline(graph);
        }
        let results = self.results()?;
        if results.is_empty() && self.is_passed_assertion(&target)? {
            return Ok(());
        }
        if let Some(functional) = functional(&target) {
            return self.update(&functional, results);
        }
        let Some(operand) = self.operand() else { return self.call(&target, results) };
        match self.relation(&target, operand, &results)? {
            Relation::Fresh => self.call(&target, results),
            Relation::Views(steps) => self.views(operand, steps, results),
            Relation::Unknown => {
                let reason = format!("`{target}` may return memory of its operand");
                let operands: Vec<TensorId> = self.operands();
                self.call(&target, results)?;
                let given = self.node.outputs.iter().flat_map(tensor_names);
                let given: Vec<TensorId> = given.filter_map(|name| self.scope.tensor(name)).collect();
                operands.into_iter().chain(given).for_each(|tensor| self.memory.untrack(tensor, &reason));
                Ok(())
            }
        }
    }

    /// The first operand, where it is a tensor.
    fn operand(&self) -> Option<TensorId> {
        match &self.node.inputs.first()?.arg {
            Given::AsTensor(Name { name }) => self.scope.tensor(name),
            _ => None,
        }
    }

    fn operands(&self) -> Vec<TensorId> {
        let names = self.node.inputs.iter().flat_map(|input| tensor_names(&input.arg));
        names.filter_map(|name| self.scope.tensor(name)).collect()
    }

    fn keywords(&mut self) -> Result<BTreeMap<String, Argument>, String> {
        let mut reader = Reader { memory: self.memory, scope: self.scope };
        let mut keywords = BTreeMap::new();
        for input in &self.node.inputs {
            let argument =
                reader.argument(&input.arg).map_err(|reason| format!("argument `{}`: {reason}", input.name))?;
            if keywords.insert(input.name.clone(), argument).is_some() && !input.name.is_empty() {
                return Err(format!("argument `{}` is given twice", input.name));
            }
        }
        Ok(keywords)
    }

    /// The tensors that the node gives; numbers become symbols at once.
    fn results(&mut self) -> Result<Results<'a>, String> {
        let mut results = Vec::new();
        for output in &self.node.outputs {
            let symbol = match output {
                Given::AsSymInt(schema::SymInt::AsName(name))
                | Given::AsSymFloat(schema::SymFloat::AsName(name))
                | Given::AsSymBool(schema::SymBool::AsName(name)) => Some(name),
                _ => None,
            };
            if let Some(name) = symbol {
                self.scope.define(name, Bound::Symbol(name.clone()))?;
                continue;
            }
            let names = tensor_names(output);
            if names.is_empty() {
                results.push(None);
            }
            for name in names {
                results.push(Some((name, self.scope.recorded(name)?)));
            }
        }
        Ok(results)
    }

    fn relation(&self, target: &str, operand: TensorId, results: &Results<'a>) -> Result<Relation, String> {
        let keywords = self.plain_keywords();
        let types: Vec<RecordedTensor> = results.iter().flatten().map(|(_, recorded)| recorded.clone()).collect();
        let device = |name: &str| self.scope.graph.tensor_values.get(name).map(|meta| &meta.device);
        let given = self.node.inputs.iter().flat_map(|input| tensor_names(&input.arg)).next();
        let first = results.iter().flatten().next().map(|(name, _)| *name);
        let changes_device = given.and_then(device) != first.and_then(device);
        let operand = self.memory.recorded(operand);
        Ok(ViewCall { target, keywords: &keywords, operand, results: &types, changes_device }.relation())
    }

    /// Arguments without tensors, which decide on views.
    fn plain_keywords(&self) -> BTreeMap<String, Argument> {
        let mut memory = Memory::default();
        let mut reader = Reader { memory: &mut memory, scope: self.scope };
        let plain = self.node.inputs.iter().filter(|input| tensor_names(&input.arg).is_empty());
        plain.filter_map(|input| Some((input.name.clone(), reader.argument(&input.arg).ok()?))).collect()
    }

    /// A node whose results have memory of their own.
    fn call(&mut self, target: &str, results: Results<'a>) -> Result<(), String> {
        if results.is_empty() && !self.node.outputs.is_empty() {
            // Numbers alone: who reads them is refused.
            return Ok(());
        }
        let keywords = self.keywords()?;
        let id = self.memory.new_id();
        let is_list = matches!(self.node.outputs[..], [Given::AsTensors(_) | Given::AsOptionalTensors(_)]);
        let recorded_of = |result: &Option<(&str, RecordedTensor)>| {
            result.as_ref().map_or(Recorded::Nothing, |(_, recorded)| Recorded::Tensor(recorded.clone()))
        };
        let recorded = match &results[..] {
            [] => Recorded::Nothing,
            [result] if !is_list => recorded_of(result),
            results => Recorded::Tuple(results.iter().map(recorded_of).collect()),
        };
        let is_tuple = matches!(recorded, Recorded::Tuple(_));
        self.push(id, target, keywords, recorded)?;
        for (position, result) in results.into_iter().enumerate() {
            let Some((name, recorded)) = result else { continue };
            let mut item = id;
            if is_tuple {
                if !self.scope.used.contains(name) {
                    continue;
                }
                item = self.memory.new_id();
                self.memory.push(CapturedNode {
                    id: item,
                    target: "getitem".to_owned(),
                    positional: vec![Argument::Reference(id), Argument::Int(position as i64)],
                    keywords: BTreeMap::new(),
                    recorded: Recorded::Tensor(recorded.clone()),
                    location: self.location.clone(),
                    refusal: None,
                })?;
            }
            let tensor = self.memory.base(item, recorded);
            self.scope.define(name, Bound::Tensor(tensor))?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        id: u64,
        target: &str,
        keywords: BTreeMap<String, Argument>,
        recorded: Recorded,
    ) -> Result<(), String> {
        self.memory.push(CapturedNode {
            id,
            target: target.to_owned(),
            positional: Vec::new(),
            keywords,
            recorded,
            location: self.location.clone(),
            refusal: None,
        })
    }

    /// A node whose results are views of its operand.
    fn views(&mut self, operand: TensorId, steps: Vec<Step>, results: Results<'a>) -> Result<(), String> {
        for (step, (name, recorded)) in steps.into_iter().zip(results.into_iter().flatten()) {
            let tensor = match step {
                Step::Same => {
                    self.alias(operand, vec![Some((name, recorded))])?;
                    continue;
                }
                step => self.memory.view(operand, step, recorded, self.location.clone()),
            };
            self.scope.define(name, Bound::Tensor(tensor))?;
        }
        Ok(())
    }

    /// A node that changes its first operand in place: the functional overload, converted to what
    /// the operand is, and written to its memory.
    fn update(&mut self, functional: &Functional, results: Results<'a>) -> Result<(), String> {
        let Some(operand) = self.operand() else {
            let target = self.location.target.clone();
            return self.refuse(format!("`{target}` changes what is no tensor"), results, None);
        };
        let target = match functional {
            Functional::Nothing => return self.alias(operand, results),
            Functional::Refused(reason) => return self.refuse((*reason).to_owned(), results, None),
            Functional::Overload(target) => target,
        };
        if let Some(reason) = self.memory.refusal(operand) {
            return self.refuse(reason, results, Some(operand));
        }
        let before = self.memory.read(operand)?;
        let keywords = self.keywords()?;
        let recorded = self.memory.recorded(operand).clone();
        let mut id = self.memory.new_id();
        if target == COPY {
            self.push(id, COPY, keywords, Recorded::Tensor(recorded))?;
        } else {
            self.push(id, target, keywords, Recorded::Nothing)?;
            let source = [("self", Argument::Reference(before)), ("src", Argument::Reference(id))];
            id = self.memory.new_id();
            let keywords = source.map(|(name, argument)| (name.to_owned(), argument)).into();
            self.push(id, COPY, keywords, Recorded::Tensor(recorded))?;
        }
        self.memory.write(operand, id, &self.location)?;
        self.alias(operand, results)
    }

    fn alias(&mut self, operand: TensorId, results: Results<'a>) -> Result<(), String> {
        for (name, recorded) in results.into_iter().flatten() {
            let found = self.memory.recorded(operand);
            if (&recorded.dtype, &recorded.shape) != (&found.dtype, &found.shape) {
                return Err(format!("its result is recorded as {} but is {}", recorded.text(), found.text()));
            }
            self.scope.define(name, Bound::Tensor(operand))?;
        }
        Ok(())
    }

    /// A node that is refused here, whose results are `operand` where that is known.
    fn refuse(&mut self, reason: String, results: Results<'a>, operand: Option<TensorId>) -> Result<(), String> {
        let id = self.memory.new_id();
        let first = results.iter().flatten().next();
        let recorded = first.map_or(Recorded::Nothing, |(_, recorded)| Recorded::Tensor(recorded.clone()));
        self.memory.push(CapturedNode {
            id,
            target: self.location.target.clone(),
            positional: Vec::new(),
            keywords: BTreeMap::new(),
            recorded,
            location: self.location.clone(),
            refusal: Some(reason),
        })?;
        for (name, recorded) in results.into_iter().flatten() {
            let tensor = operand.unwrap_or_else(|| self.memory.base(id, recorded));
            self.scope.define(name, Bound::Tensor(tensor))?;
        }
        Ok(())
    }

    /// True for an assertion that holds for the sizes and types of this graph.
    fn is_passed_assertion(&self, target: &str) -> Result<bool, String> {
        let keywords = self.plain_keywords();
        match target {
            "aten._assert_scalar.default" => Ok(matches!(keywords.get("self"), Some(Argument::Bool(true)))),
            "aten._assert_tensor_metadata.default" => {
                let Some(operand) = self.operand() else { return Ok(false) };
                Ok(has_metadata(self.memory.recorded(operand), &keywords))
            }
            _ => Ok(false),
        }
    }

    /// The subgraph of a region that changes how gradients or types are made, but none of these.
    fn inlined(&self, target: &str) -> Option<&'a Graph<'a>> {
        let inputs = &self.node.inputs;
        let position = match target {
            "hop.wrap_with_set_grad_enabled" => 1,
            "hop.wrap_with_autocast" if matches!(inputs.get(2)?.arg, Given::AsBool(false)) => 4,
            _ => return None,
        };
        match &inputs.get(position)?.arg {
            Given::AsGraph(argument) => Some(&argument.graph),
            _ => None,
        }
    }

    fn inline(&mut self, graph: &'a Graph<'a>) -> Result<(), String> {
        let operands = self.node.inputs.iter().skip_while(|input| !matches!(input.arg, Given::AsGraph(_))).skip(1);
        let mut inner = Scope::new(graph);
        let mut n_operands = 0;
        for (given, wanted) in operands.zip(&graph.inputs) {
            n_operands += 1;
            let (Given::AsTensor(Name { name: given }), Given::AsTensor(Name { name: wanted })) = (&given.arg, wanted)
            else {
                return Err("a region takes something other than tensors".to_owned());
            };
            inner.define(wanted, self.scope.get(given)?.clone())?;
        }
        if n_operands != graph.inputs.len() {
            return Err(format!("a region of {} inputs gets {n_operands}", graph.inputs.len()));
        }
        read_nodes(self.memory, &mut inner)?;
        let given = self.node.outputs.iter().flat_map(tensor_names);
        let inside: Vec<&str> = graph.outputs.iter().flat_map(tensor_names).collect();
        let given: Vec<&'a str> = given.collect();
        if given.len() != inside.len() {
            return Err(format!("a region of {} results gives {}", inside.len(), given.len()));
        }
        for (name, inside) in given.into_iter().zip(inside) {
            let bound = inner.get(inside)?.clone();
            self.scope.define(name, bound)?;
        }
        Ok(())
    }
}

fn has_metadata(recorded: &RecordedTensor, keywords: &BTreeMap<String, Argument>) -> bool {
    let is_same = |name: &str, sizes: Option<Vec<usize>>| match keywords.get(name) {
        None | Some(Argument::Nothing) => true,
        Some(Argument::List(wanted)) => sizes.is_some_and(|sizes| {
            let sizes = sizes.into_iter().map(|size| Argument::Int(size as i64));
            wanted.iter().cloned().eq(sizes)
        }),
        Some(_) => false,
    };
    let has_dtype = match keywords.get("dtype") {
        None | Some(Argument::Nothing) => true,
        Some(Argument::Dtype(dtype)) => *dtype == recorded.dtype,
        Some(_) => false,
    };
    has_dtype && is_same("size", recorded.known_shape()) && is_same("stride", recorded.known_strides())
}
