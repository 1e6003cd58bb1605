//! Outputs that update inputs in place: right values, a pointer in the NEFF, and only what changes
//! is written.

use compiler::execute::Executable;
use compiler::metrics::program_metrics;
use compiler::pipeline::{Compiled, Options, Unwatched, compile};
use compiler::samples::seeded;
use ir::Graph;
use ir::program::HbmKind;
use ir::reference::{Rounding, Value, evaluate};
use neff::container::read;
use neff::members::{Definition, TensorMap, VariableKind, from_json};

/// Compiles, proves, runs and compares with the reference evaluator.
fn compiled(text: &str) -> (Graph, Compiled) {
    let graph: Graph = ir::text::parse_graph("case.ir", text).expect("the text is a graph");
    let compiled = compile(&graph, &Options::default(), &mut Unwatched).expect("the graph compiles");
    let executable = Executable::load(compiled.neff.as_ref().expect("a NEFF")).expect("the NEFF loads");
    let inputs = seeded(&graph, 3).inputs;
    let expected = evaluate(&graph, &inputs, Rounding::PerOp).expect("the graph has values");
    let given = executable.run_values(&inputs).expect("the program runs");
    assert_eq!(given, expected);
    (graph, compiled)
}

fn written_bytes(compiled: &Compiled) -> u64 {
    program_metrics(compiled.program.as_ref().expect("a program")).hbm_write_bytes
}

#[test]
fn a_cache_gets_only_its_new_rows() {
    let (_, compiled) = compiled(
        r#"graph @cache {
  input %0 "cache": f32[2, 16, 8] static
  input %1 "new": f32[2, 1, 8] dynamic
  %2 = slice %0 {axis = 1, start = 0, end = 5, step = 1} : f32[2, 5, 8]
  %3 = slice %0 {axis = 1, start = 6, end = 16, step = 1} : f32[2, 10, 8]
  %4 = add %1, %1 : f32[2, 1, 8]
  %5 = concat %2, %4, %3 {axis = 1} : f32[2, 16, 8]
  %6 = neg %5 : f32[2, 16, 8]
  output %5 "update" updates %0
  output %6 "negative"
}
"#,
    );
    assert_eq!(written_bytes(&compiled), (2 * 8 + 2 * 16 * 8) * 4);
    let program = compiled.program.expect("a program");
    let kinds: Vec<_> = program.tensors.iter().map(|tensor| tensor.kind.clone()).collect();
    assert!(kinds.contains(&HbmKind::Updated { input: 0, output: 0 }), "{kinds:?}");
    let container = read(&compiled.neff.expect("a NEFF")).expect("the NEFF is whole");
    let member = |name: &str| container.member(name).expect("the member exists");
    let definition: Definition = from_json("def.json", member("sg00/def.json")).expect("def.json");
    let pointer = &definition.var["output0"];
    assert_eq!(pointer.kind, VariableKind::Pointer);
    assert_eq!(pointer.referenced_var_id, Some(definition.var["cache"].var_id));
    assert_eq!(definition.var["cache"].kind, VariableKind::Input);
    let map: TensorMap = from_json("tensor_map.json", member("sg00/tensor_map.json")).expect("tensor_map.json");
    assert_eq!(map["output0"].alias_of.as_deref(), Some("cache"));
}

#[test]
fn strided_inputs_are_updated_in_their_own_layout() {
    let (_, compiled) = compiled(
        r#"graph @strided {
  input %0 "x": f32[4, 6] dynamic strides [1, 4]
  %1 = slice %0 {axis = 1, start = 0, end = 3, step = 1} : f32[4, 3]
  %2 = slice %0 {axis = 1, start = 3, end = 6, step = 1} : f32[4, 3]
  %3 = exp %2 : f32[4, 3]
  %4 = concat %1, %3 {axis = 1} : f32[4, 6]
  output %4 "update" strides [1, 4] updates %0
}
"#,
    );
    assert_eq!(written_bytes(&compiled), 12 * 4);
}

#[test]
fn updates_read_what_was_there_before_the_call() {
    // Swapped, rotated in itself, and returned as it was.
    let (_, compiled) = compiled(
        r#"graph @swap {
  input %0 "x": f32[4, 6] dynamic
  input %1 "y": f32[4, 6] dynamic
  input %2 "z": f32[4, 6] dynamic
  %3 = slice %2 {axis = 0, start = 1, end = 4, step = 1} : f32[3, 6]
  %4 = slice %2 {axis = 0, start = 0, end = 1, step = 1} : f32[1, 6]
  %5 = concat %3, %4 {axis = 0} : f32[4, 6]
  output %1 "x" updates %0
  output %0 "y" updates %1
  output %5 "z" updates %2
  output %2 "old z"
  output %0 "old x"
}
"#,
    );
    assert!(compiled.neff.is_some());
}

#[test]
fn an_update_to_the_same_value_writes_nothing() {
    let (_, compiled) = compiled(
        r#"graph @same {
  input %0 "x": f32[4, 6] dynamic
  input %1 "y": f32[4] dynamic
  %2 = neg %1 : f32[4]
  output %0 "x" updates %0
  output %2 "negative"
}
"#,
    );
    assert_eq!(written_bytes(&compiled), 16);
}

#[test]
fn counters_and_64_bit_integers_are_updated_whole() {
    compiled(
        r#"graph @counter {
  input %0 "steps": i64[] static
  input %1 "ids": i64[2, 3] dynamic
  input %2 "more": i64[2, 3] dynamic
  %3 = full {dtype = i64, shape = [], value = 1.0} : i64[]
  %4 = add %0, %3 : i64[]
  %5 = sub %1, %2 : i64[2, 3]
  %6 = concat %2, %5 {axis = 0} : i64[4, 3]
  %7 = concat %5, %2 {axis = 0} : i64[4, 3]
  %8 = transpose %6 {perm = [1, 0]} : i64[3, 4]
  %9 = reshape %8 {shape = [2, 6]} : i64[2, 6]
  output %4 "steps" updates %0
  output %1 "more" updates %2
  output %6 "joined"
  output %7 "joined the other way"
  output %9 "reshaped"
}
"#,
    );
}

#[test]
fn rows_at_an_index_are_written_in_place() {
    let (_, compiled) = compiled(
        r#"graph @cache {
  input %0 "cache": f32[1, 2, 16, 8] static
  input %1 "new": f32[1, 2, 3, 8] dynamic
  input %2 "positions": i64[3] dynamic
  %3 = scatter_rows %0, %2, %1 {axis = 2} : f32[1, 2, 16, 8]
  %4 = neg %3 : f32[1, 2, 16, 8]
  output %3 "cache" updates %0
  output %4 "negative"
}
"#,
    );
    assert_eq!(written_bytes(&compiled), (2 * 3 * 8 + 2 * 16 * 8) * 4);
}

#[test]
fn the_old_rows_can_still_be_read() {
    compiled(
        r#"graph @cache {
  input %0 "cache": f32[16, 8] static
  input %1 "new": f32[3, 8] dynamic
  input %2 "positions": i64[3] dynamic
  %3 = scatter_rows %0, %2, %1 {axis = 0} : f32[16, 8]
  %4 = sub %3, %0 : f32[16, 8]
  %5 = scatter_rows %3, %2, %1 {axis = 0} : f32[16, 8]
  output %5 "cache" updates %0
  output %4 "difference"
  output %0 "old"
}
"#,
    );
}

#[test]
fn positions_count_from_the_end_and_are_checked() {
    let text = r#"graph @cache {
  input %0 "cache": f32[4, 3, 200] dynamic
  input %1 "new": f32[4, 3, 2] dynamic
  input %2 "positions": i64[2] dynamic
  %3 = scatter_rows %0, %2, %1 {axis = 2} : f32[4, 3, 200]
  output %3 "cache"
}
"#;
    let graph = ir::text::parse_graph("case.ir", text).expect("the text is a graph");
    let compiled = compile(&graph, &Options::default(), &mut Unwatched).expect("the graph compiles");
    let executable = Executable::load(&compiled.neff.expect("a NEFF")).expect("the NEFF loads");
    let mut inputs = seeded(&graph, 3).inputs;
    inputs[2] = Value::ints(&[2], [-1, 5]);
    let expected = evaluate(&graph, &inputs, Rounding::PerOp).expect("the graph has values");
    assert_eq!(executable.run_values(&inputs).expect("the program runs"), expected);
    inputs[2] = Value::ints(&[2], [0, 200]);
    let error = executable.run_values(&inputs).expect_err("there is no position 200");
    assert_eq!(error.exit_code(), 1, "{error}");
}
