//! What a compilation depends on, in parts that are told apart.
//!
//! Names and source lines change no instruction, but the NEFF's tensor names and debug lines and the
//! report are made of them: an entry answers only for exactly these. Parts are kept apart so that
//! a miss can be explained.

use ir::graph::{GraphInput, GraphOutput, InputRole, Layout, Location, Node};
use ir::ops::Attr;
use ir::{Dtype, Graph, TensorType};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::pipeline::Options;

/// Version of the compiler with the fingerprint of its sources.
pub const COMPILER_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("NEFFUSE_FINGERPRINT"));

/// Everything that a compilation's result depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Digest of ops, operands, types, strides and roles.
    pub structure: String,
    /// Digest of the values of constants.
    pub constants: String,
    /// Digest of the names of the graph, its tensors and its nodes.
    pub names: String,
    /// Digest of module paths and source lines.
    pub lines: String,
    pub target: String,
    pub numerics: String,
    /// Rules that are not used, sorted.
    pub disabled_rules: Vec<String>,
    /// Whether repeated layers are called.
    #[serde(default)]
    pub outline: String,
    /// [`COMPILER_VERSION`] of the compiler.
    pub version: String,
}

/// A part of a key that is not the same in another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs, in words.
    pub part: &'static str,
    /// Here and there, where that can be shown.
    pub values: Option<(String, String)>,
}

impl Key {
    /// The key of compiling a graph.
    pub fn new(graph: &Graph, options: &Options) -> Key {
        let Options { target, numerics, disabled_rules, outline, print_after: _, stop_after: _, fuel: _ } = options;
        let mut disabled_rules = disabled_rules.clone();
        disabled_rules.sort();
        disabled_rules.dedup();
        let digests = GraphDigests::of(graph);
        Key {
            structure: digests.structure.finish(),
            constants: digests.constants.finish(),
            names: digests.names.finish(),
            lines: digests.lines.finish(),
            target: target.name().to_owned(),
            numerics: numerics.name().to_owned(),
            disabled_rules,
            outline: outline.name().to_owned(),
            version: COMPILER_VERSION.to_owned(),
        }
    }

    /// Digest of all parts: the entry's name.
    pub fn digest(&self) -> String {
        let mut digest = PartDigest::new();
        let Key { structure, constants, names, lines, target, numerics, disabled_rules, outline, version } = self;
        for part in [structure, constants, names, lines, target, numerics, outline, version] {
            digest.text(part);
        }
        digest.number(disabled_rules.len());
        disabled_rules.iter().for_each(|rule| digest.text(rule));
        digest.finish()
    }

    /// What differs in another key, the weightiest first; empty for equal keys.
    pub fn differences(&self, other: &Key) -> Vec<Difference> {
        let digests = [
            ("the graph: ops, types or shapes", &self.structure, &other.structure),
            ("the values of constants", &self.constants, &other.constants),
            ("names of the graph, its tensors or nodes", &self.names, &other.names),
            ("module paths or source lines", &self.lines, &other.lines),
        ];
        let rules = |key: &Key| match key.disabled_rules.as_slice() {
            [] => "none".to_owned(),
            rules => rules.join(", "),
        };
        let shown = [
            ("--target", self.target.clone(), other.target.clone()),
            ("--numerics", self.numerics.clone(), other.numerics.clone()),
            ("--disable-rule", rules(self), rules(other)),
            ("--outline", self.outline.clone(), other.outline.clone()),
            ("the compiler's version", self.version.clone(), other.version.clone()),
        ];
        let digests = digests.into_iter().filter(|(_, here, there)| here != there);
        let shown = shown.into_iter().filter(|(_, here, there)| here != there);
        digests
            .map(|(part, _, _)| Difference { part, values: None })
            .chain(shown.map(|(part, here, there)| Difference { part, values: Some((here, there)) }))
            .collect()
    }

    /// How far another key is from this one: what differs first, the weightiest part deciding.
    pub(super) fn distance(&self, other: &Key) -> [bool; 9] {
        [
            self.structure != other.structure,
            self.constants != other.constants,
            self.version != other.version,
            self.target != other.target,
            self.numerics != other.numerics,
            self.disabled_rules != other.disabled_rules,
            self.outline != other.outline,
            self.names != other.names,
            self.lines != other.lines,
        ]
    }
}

/// SHA-256 over fields that cannot run into each other.
struct PartDigest(Sha256);

impl PartDigest {
    fn new() -> Self {
        PartDigest(Sha256::new())
    }

    fn number(&mut self, number: usize) {
        self.0.update((number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn signed(&mut self, numbers: &[i64]) {
        self.number(numbers.len());
        numbers.iter().for_each(|number| self.0.update(number.to_le_bytes()));
    }

    fn dtype(&mut self, dtype: Dtype) {
        self.text(dtype.name());
    }

    fn ty(&mut self, ty: &TensorType) {
        self.dtype(ty.dtype);
        self.number(ty.rank());
        ty.shape.iter().for_each(|&size| self.number(size));
    }

    fn strides(&mut self, strides: Option<&[i64]>) {
        self.number(usize::from(strides.is_some()));
        self.signed(strides.unwrap_or_default());
    }

    fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct GraphDigests {
    structure: PartDigest,
    constants: PartDigest,
    names: PartDigest,
    lines: PartDigest,
}

impl GraphDigests {
    fn of(graph: &Graph) -> GraphDigests {
        let mut digests = GraphDigests {
            structure: PartDigest::new(),
            constants: PartDigest::new(),
            names: PartDigest::new(),
            lines: PartDigest::new(),
        };
        digests.boundary(graph);
        digests.nodes(graph);
        for Location { node, target, module, line } in &graph.locations {
            digests.names.text(node);
            digests.names.text(target);
            digests.lines.text(module);
            digests.lines.text(line);
        }
        digests
    }

    fn boundary(&mut self, graph: &Graph) {
        self.names.text(&graph.name);
        self.structure.number(graph.inputs.len());
        // Fields are named one by one, so that a new one cannot be forgotten here.
        for GraphInput { value, name, role, strides } in &graph.inputs {
            self.names.text(name);
            self.structure.number(value.index());
            self.structure.ty(graph.ty(*value));
            self.structure.text(match role {
                InputRole::Dynamic => "dynamic",
                InputRole::Static => "static",
                InputRole::Saved => "saved",
                InputRole::Tangent => "tangent",
            });
            self.structure.strides(strides.as_deref());
        }
        self.structure.number(graph.outputs.len());
        for GraphOutput { value, strides, alias, description } in &graph.outputs {
            self.names.text(description);
            // Value 0 and no value must not look the same; nor input 0 and none.
            self.structure.number(value.map_or(0, |value| value.index() + 1));
            self.structure.number(alias.map_or(0, |input| input as usize + 1));
            self.structure.strides(strides.as_deref());
        }
        self.structure.number(graph.layouts.len());
        for layout in &graph.layouts {
            let (n_outer, n_partition) =
                layout.map_or((0, 0), |Layout { n_outer, n_partition }| (n_outer, n_partition));
            let layout = [u8::from(layout.is_some()), n_outer, n_partition];
            self.structure.bytes(&layout);
        }
    }

    fn nodes(&mut self, graph: &Graph) {
        self.structure.number(graph.n_nodes());
        for (_, Node { op, operands, results, locations }) in graph.nodes() {
            self.structure.text(op.name());
            self.structure.number(operands.len());
            operands.iter().for_each(|operand| self.structure.number(operand.index()));
            self.structure.number(results.len());
            results.iter().for_each(|&result| self.structure.ty(graph.ty(result)));
            for (name, value) in op.attrs() {
                self.structure.text(name);
                self.attribute(&value);
            }
            // Which source nodes a node stands for.
            self.names.number(locations.len());
            locations.iter().for_each(|location| self.names.number(location.index()));
        }
    }

    fn attribute(&mut self, value: &Attr) {
        match value {
            Attr::Int(number) => self.structure.signed(&[*number]),
            Attr::Ints(numbers) => self.structure.signed(numbers),
            Attr::F32(bits) => self.structure.bytes(&bits.to_le_bytes()),
            Attr::F64(bits) => self.structure.bytes(&bits.to_le_bytes()),
            Attr::Dtype(dtype) => self.structure.dtype(*dtype),
            Attr::Word(word) => self.structure.text(word),
            Attr::Bytes(bytes) => {
                self.structure.number(bytes.len());
                self.constants.bytes(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ir::graph::{InputRole, Location};
    use ir::ops::{Abs, Constant, Neg};
    use ir::target::TargetName;
    use ir::{Dtype, Graph, Op, TensorType};
    use passes::Numerics;

    use super::Key;
    use crate::pipeline::Options;

    fn graph(op: Op, name: &str, line: &str) -> Graph {
        let mut graph = Graph::new("g");
        let location = Location { line: line.to_owned(), ..Location::default() };
        let location = graph.push_location(location);
        let input = graph.push_input(name, TensorType::new(Dtype::F32, [2, 3]), InputRole::Dynamic);
        let result = graph.push_value_of(op, &[input], &[location]).unwrap();
        graph.push_output(result);
        graph
    }

    fn parts(one: &Key, other: &Key) -> Vec<&'static str> {
        one.differences(other).into_iter().map(|difference| difference.part).collect()
    }

    #[test]
    fn each_part_tells_its_own_changes_and_no_others() {
        let options = Options::default();
        let key = Key::new(&graph(Abs.into(), "x", "m.py:1"), &options);
        let with = |graph: &Graph, options: &Options| {
            let other = Key::new(graph, options);
            assert_eq!(key.digest() == other.digest(), key == other);
            parts(&key, &other)
        };
        assert!(with(&graph(Abs.into(), "x", "m.py:1"), &options).is_empty());
        assert_eq!(with(&graph(Neg.into(), "x", "m.py:1"), &options), ["the graph: ops, types or shapes"]);
        assert_eq!(with(&graph(Abs.into(), "y", "m.py:1"), &options), ["names of the graph, its tensors or nodes"]);
        assert_eq!(with(&graph(Abs.into(), "x", "m.py:2"), &options), ["module paths or source lines"]);
        let same = graph(Abs.into(), "x", "m.py:1");
        let mut strided = same.clone();
        strided.inputs[0].strides = Some([1, 2].into_iter().collect());
        assert_eq!(with(&strided, &options), ["the graph: ops, types or shapes"]);
        assert_eq!(with(&same, &Options { target: TargetName::Trn1, ..Options::default() }), ["--target"]);
        assert_eq!(with(&same, &Options { numerics: Numerics::Exact, ..Options::default() }), ["--numerics"]);
        let disabled = Options { disabled_rules: vec!["rms-norm".to_owned()], ..Options::default() };
        assert_eq!(with(&same, &disabled), ["--disable-rule"]);
    }

    #[test]
    fn values_of_constants_are_a_part_of_their_own() {
        let with = |byte: u8| {
            let mut graph = Graph::new("g");
            let data = [byte, 0, 0, 0].as_slice().into();
            let constant = Constant { dtype: Dtype::I32, shape: [1].into_iter().collect(), data };
            let value = graph.push_value_of(constant.into(), &[], &[]).unwrap();
            graph.push_output(value);
            Key::new(&graph, &Options::default())
        };
        assert_eq!(parts(&with(1), &with(2)), ["the values of constants"]);
        assert!(parts(&with(1), &with(1)).is_empty());
    }

    #[test]
    fn the_order_of_disabled_rules_does_not_matter() {
        let with = |rules: &[&str]| {
            let disabled_rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
            Key::new(&graph(Abs.into(), "x", ""), &Options { disabled_rules, ..Options::default() })
        };
        assert_eq!(with(&["a", "b"]).digest(), with(&["b", "a", "b"]).digest());
        assert_ne!(with(&["a", "b"]).digest(), with(&["ab"]).digest());
    }
}
