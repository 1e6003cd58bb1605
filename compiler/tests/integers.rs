//! 32- and 64-bit integers on the device, at the ends of what it holds.

use compiler::execute::Executable;
use compiler::pipeline::{Options, Unwatched, compile};
use ir::reference::{Rounding, Value, evaluate};
use ir::target::TargetName;

/// Numbers whose differences wrap, and neighbours that f32 cannot tell apart.
const EXTREMES: [i64; 11] = [
    i32::MIN as i64,
    i32::MIN as i64 + 1,
    -16_777_217,
    -1,
    0,
    1,
    16_777_216,
    16_777_217,
    1_073_741_825,
    i32::MAX as i64 - 1,
    i32::MAX as i64,
];

/// Compiles and runs a graph on every chip: its results are the reference's, bit by bit.
fn agrees(text: &str, inputs: &[Value]) {
    let graph = ir::text::parse_graph("integers.ir", text).expect("the text is a graph");
    let expected = evaluate(&graph, inputs, Rounding::PerOp).expect("the graph has values");
    for target in TargetName::ALL {
        let options = Options { target, ..Options::default() };
        let compiled = compile(&graph, &options, &mut Unwatched).expect("the graph compiles");
        let executable = Executable::load(&compiled.neff.expect("a NEFF")).expect("the NEFF loads");
        assert_eq!(executable.run_values(inputs).expect("it runs"), expected, "{target}: {text}");
    }
}

#[test]
fn comparisons_are_exact_for_all_32_bit_numbers() {
    let n_extremes = EXTREMES.len();
    for dtype in ["i32", "i64"] {
        for name in ["eq", "ne", "lt", "le", "gt", "ge"] {
            let text = format!(
                r#"graph @compare {{
  input %0 "x": {dtype}[{n_extremes}, 1] dynamic
  input %1 "y": {dtype}[1, {n_extremes}] dynamic
  %2 = {name} %0, %1 : bool[{n_extremes}, {n_extremes}]
  %3 = full {{value = 16777216.0, dtype = {dtype}, shape = []}} : {dtype}[]
  %4 = {name} %0, %3 : bool[{n_extremes}, 1]
  %5 = full {{value = 16777217.0, dtype = {dtype}, shape = []}} : {dtype}[]
  %6 = {name} %0, %5 : bool[{n_extremes}, 1]
  output %2 ""
  output %4 ""
  output %6 ""
}}
"#
            );
            agrees(&text, &[Value::ints(&[n_extremes, 1], EXTREMES), Value::ints(&[1, n_extremes], EXTREMES)]);
        }
    }
}

#[test]
fn sums_of_integers_are_exact_along_any_axis() {
    let text = r#"graph @sums {
  input %0 "x": i64[3, 300] dynamic
  input %1 "y": i64[3, 300] dynamic
  %2 = lt %0, %1 : bool[3, 300]
  %3 = cast %2 {dtype = i64} : i64[3, 300]
  %4 = reduce_sum %3 {axes = [0, 1]} : i64[1, 1]
  %5 = reduce_sum %0 {axes = [1]} : i64[3, 1]
  %6 = reduce_sum %0 {axes = [0]} : i64[1, 300]
  %7 = cumsum %0 {axis = 1} : i64[3, 300]
  %8 = reduce_max %0 {axes = [1]} : i64[3, 1]
  %9 = reduce_min %0 {axes = [0]} : i64[1, 300]
  output %4 ""
  output %5 ""
  output %6 ""
  output %7 ""
  output %8 ""
  output %9 ""
}
"#;
    // 300 numbers of 16 bits add up to less than 2^24.
    let numbers = |factor: i64| (0..900).map(|at| (at * factor) % 65_536 - 32_768).collect::<Vec<i64>>();
    let inputs = [Value::ints(&[3, 300], numbers(65_535)), Value::ints(&[3, 300], numbers(40_503))];
    agrees(text, &inputs);
}

#[test]
fn extremes_negation_and_magnitude_are_exact_for_all_32_bit_numbers() {
    let n_extremes = EXTREMES.len();
    // Of 64-bit numbers the least 32-bit one has no negative in 32 bits: that range is refused.
    for (dtype, first) in [("i32", 0), ("i64", 1)] {
        let n_numbers = n_extremes - first;
        let text = format!(
            r#"graph @extremes {{
  input %0 "x": {dtype}[{n_numbers}, 1] dynamic
  input %1 "y": {dtype}[1, {n_numbers}] dynamic
  %2 = maximum %0, %1 : {dtype}[{n_numbers}, {n_numbers}]
  %3 = minimum %0, %1 : {dtype}[{n_numbers}, {n_numbers}]
  %4 = full {{value = 16777217.0, dtype = {dtype}, shape = []}} : {dtype}[]
  %5 = maximum %0, %4 : {dtype}[{n_numbers}, 1]
  %6 = full {{value = -3.0, dtype = {dtype}, shape = []}} : {dtype}[]
  %7 = minimum %0, %6 : {dtype}[{n_numbers}, 1]
  %8 = lt %0, %1 : bool[{n_numbers}, {n_numbers}]
  %9 = where %8, %0, %4 : {dtype}[{n_numbers}, {n_numbers}]
  output %2 ""
  output %3 ""
  output %5 ""
  output %7 ""
  output %9 ""
}}
"#
        );
        agrees(
            &text,
            &[Value::ints(&[n_numbers, 1], &EXTREMES[first..]), Value::ints(&[1, n_numbers], &EXTREMES[first..])],
        );
    }
    let text = format!(
        r#"graph @signs {{
  input %0 "x": i32[{n_extremes}] dynamic
  %1 = neg %0 : i32[{n_extremes}]
  %2 = abs %0 : i32[{n_extremes}]
  output %1 ""
  output %2 ""
}}
"#
    );
    agrees(&text, &[Value::ints(&[n_extremes], EXTREMES)]);
}
