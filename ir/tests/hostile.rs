//! Ops with any attributes over operands of any type: refused or evaluated, never a panic.

use ir::graph::Graph;
use ir::ops::{Attr, AttrKind};
use ir::reference::{Lanes, Value};
use ir::text::parse_graph;
use ir::types::TensorType;
use ir::{Dtype, Op};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, proptest};
use proptest::prop_oneof;
use proptest::sample::select;

fn dim() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0usize..4, 1 => Just(usize::MAX), 1 => any::<usize>()]
}

fn small_type() -> impl Strategy<Value = TensorType> {
    (
        select(Dtype::ALL.to_vec()),
        vec(prop_oneof![1 => Just(0usize), 3 => Just(1usize), 6 => Just(2usize), 4 => Just(3usize)], 0..4),
    )
        .prop_map(|(dtype, shape)| TensorType::new(dtype, shape))
}

fn any_type() -> impl Strategy<Value = TensorType> {
    (select(Dtype::ALL.to_vec()), vec(dim(), 0..5)).prop_map(|(dtype, shape)| TensorType::new(dtype, shape))
}

/// An attribute of the kind, in range more often than not.
fn attr(kind: AttrKind) -> proptest::strategy::BoxedStrategy<Attr> {
    let number = || prop_oneof![8 => -1i64..4, 1 => any::<i64>()];
    match kind {
        AttrKind::Int => number().prop_map(Attr::Int).boxed(),
        AttrKind::Ints => vec(number(), 0..4).prop_map(|numbers| Attr::Ints(numbers.into_iter().collect())).boxed(),
        AttrKind::F32 => any::<u32>().prop_map(Attr::F32).boxed(),
        AttrKind::F64 => prop_oneof![Just(1f64.to_bits()), any::<u64>()].prop_map(Attr::F64).boxed(),
        AttrKind::Dtype => select(Dtype::ALL.to_vec()).prop_map(Attr::Dtype).boxed(),
        AttrKind::Word => {
            select(vec!["none", "relu", "gelu", "other"]).prop_map(|word| Attr::Word(word.into())).boxed()
        }
        AttrKind::Bytes => vec(any::<u8>(), 0..9).prop_map(|bytes| Attr::Bytes(bytes.into())).boxed(),
    }
}

/// Any op that has a name and attributes of the declared kinds.
fn op() -> impl Strategy<Value = Option<Op>> {
    select(Op::NAMES.to_vec()).prop_flat_map(|name| {
        let kinds = Op::attr_kinds(name).expect("a name from the table");
        let attrs: Vec<_> = kinds.iter().map(|&(name, kind)| attr(kind).prop_map(move |value| (name, value))).collect();
        attrs.prop_map(move |attrs| Op::from_parts(name, &attrs))
    })
}

/// A value of the type whose lanes vary, small enough to serve as indices now and then.
fn value(ty: &TensorType, seed: u64) -> Value {
    let lane = |position: usize| (position as i64 * 7 + (seed % 11) as i64) % 5 - 1;
    let n_elements = ty.n_elements();
    let lanes = if ty.dtype.is_float() {
        Lanes::Float((0..n_elements).map(|position| lane(position) as f64).collect())
    } else if ty.dtype.is_integer() {
        Lanes::Int((0..n_elements).map(|position| lane(position).clamp(0, 1)).collect())
    } else {
        Lanes::Bool((0..n_elements).map(|position| lane(position) > 0).collect())
    };
    Value { shape: ty.shape.clone(), lanes }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn types_of_any_size_are_inferred_or_refused(op in op(), operands in vec(any_type(), 0..4)) {
        if let Some(op) = op {
            let _ = op.infer(&operands);
        }
    }

    #[test]
    fn what_is_well_typed_evaluates_to_its_types(
        op in op(), first in small_type(), others in vec(small_type(), 0..3), like_first in vec(any::<bool>(), 3), seed in any::<u64>(),
    ) {
        let Some(op) = op else { return Ok(()) };
        // Most ops want equal types, which chance alone seldom gives.
        let others = others.into_iter().zip(like_first).map(|(ty, same)| if same { first.clone() } else { ty });
        let operands: Vec<TensorType> = std::iter::once(first.clone()).chain(others).collect();
        let n_operands = (0..=operands.len()).rev().find(|&count| op.infer(&operands[..count]).is_ok());
        if let Some(n_operands) = n_operands {
            assert_evaluates_to_its_types(&op, &operands[..n_operands], seed);
        }
    }

    #[test]
    fn examples_of_other_sizes_evaluate_to_their_types(
        position in 0..Op::examples().len(), sizes in vec(select(vec![0usize, 1, 1, 2, 2, 3, 5]), 8), seed in any::<u64>(),
    ) {
        // One size takes the place of another everywhere, so that most shapes go on fitting.
        let example = Op::examples().swap_remove(position);
        let resized = |size: usize| sizes.get(size).copied().unwrap_or(size);
        let operands: Vec<TensorType> = example
            .operand_types()
            .iter()
            .map(|ty| ty.with_shape(ty.shape.iter().map(|&size| resized(size))))
            .collect();
        let mut attrs = example.op.attrs();
        for (_, value) in attrs.iter_mut().filter(|(name, _)| *name == "shape") {
            *value = Attr::Ints(value.as_sizes().expect("sizes").into_iter().map(|size| resized(size) as i64).collect());
        }
        let op = Op::from_parts(example.op.name(), &attrs).expect("sizes are sizes");
        if op.infer(&operands).is_ok() {
            assert_evaluates_to_its_types(&op, &operands, seed);
        }
    }
}

/// Evaluates a well-typed op, which may fail for its values but not give something of another type.
fn assert_evaluates_to_its_types(op: &Op, operands: &[TensorType], seed: u64) {
    let types = op.infer(operands).expect("the op is well-typed");
    if types.iter().any(|ty| ty.n_elements() > 10_000) {
        return;
    }
    let values: Vec<Value> = operands.iter().map(|ty| value(ty, seed)).collect();
    let Ok(results) = op.eval(&values.iter().collect::<Vec<_>>(), &types) else { return };
    assert_eq!(results.len(), types.len());
    for (result, ty) in results.iter().zip(&types) {
        assert!(result.is_of(ty), "{op:?} gives {result:?} for {ty}");
    }
}

#[test]
fn a_graph_too_large_for_any_memory_is_refused() {
    let text = "graph @g {\n  %0 = full {value = 0.0, dtype = f32, shape = [1099511627776, 0]} : f32[1099511627776, 0]\n  output %0 \"\"\n}\n";
    insta::assert_snapshot!(parse_graph("g.ir", text).expect_err("too large"), @"error[size]: g.ir:2:3: f32[1099511627776, 0] is too large for any memory");
    let largest = text.replace("1099511627776", "1099511627775");
    let graph: Graph = parse_graph("g.ir", &largest).expect("the largest size");
    let outputs = ir::reference::evaluate(&graph, &[], ir::reference::Rounding::PerOp).expect("no elements");
    assert_eq!(outputs[0].as_ref().map(|value| value.lanes.len()), Some(0));
}
