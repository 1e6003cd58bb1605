//! Every op against the results in its own file, and its attributes through their generic form.

use ir::Op;
use ir::ops::Example;
use ir::reference::Value;

#[test]
fn every_op_gives_the_values_of_its_examples() {
    for example in Op::examples() {
        let results = example.op.infer(&example.operand_types()).expect("examples are well-typed");
        let operands: Vec<&Value> = example.operands.iter().map(|(_, value)| value).collect();
        let found = example.op.eval(&operands, &results).expect("examples have results");
        assert_eq!(found.len(), results.len(), "{:?}", example.op);
        assert_eq!(found.len(), example.results.len(), "{:?}", example.op);
        for ((found, expected), ty) in found.iter().zip(&example.results).zip(&results) {
            assert!(Example::agrees(expected, found), "{:?} gives {found:?}, not {expected:?}", example.op);
            assert_eq!(ty.shape, found.shape, "{:?}", example.op);
        }
    }
}

#[test]
fn every_op_has_an_example() {
    let with_example: Vec<&str> = Op::examples().iter().map(|example| example.op.name()).collect();
    let without: Vec<&&str> = Op::NAMES.iter().filter(|name| !with_example.contains(*name)).collect();
    assert!(without.is_empty(), "ops without an example: {without:?}");
}

#[test]
fn an_op_is_its_name_and_attributes() {
    for Example { op, operands: _, results: _ } in Op::examples() {
        let attrs = op.attrs();
        let kinds: Vec<_> = attrs.iter().map(|(name, value)| (*name, value.kind())).collect();
        assert_eq!(Op::attr_kinds(op.name()), Some(kinds.as_slice()), "{op:?}");
        assert_eq!(Op::from_parts(op.name(), &attrs), Some(op.clone()));
        let mut reversed = attrs.to_vec();
        reversed.reverse();
        assert_eq!(Op::from_parts(op.name(), &reversed), Some(op.clone()));
        reversed.push(("unknown", ir::ops::Attr::Int(0)));
        assert_eq!(Op::from_parts(op.name(), &reversed), None);
    }
}
