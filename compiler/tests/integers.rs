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
            let graph = ir::text::parse_graph("compare.ir", &text).expect("the text is a graph");
            let inputs = [Value::ints(&[n_extremes, 1], EXTREMES), Value::ints(&[1, n_extremes], EXTREMES)];
            let expected = evaluate(&graph, &inputs, Rounding::PerOp).expect("the graph has values");
            for target in TargetName::ALL {
                let options = Options { target, ..Options::default() };
                let compiled = compile(&graph, &options, &mut Unwatched).expect("the graph compiles");
                let executable = Executable::load(&compiled.neff.expect("a NEFF")).expect("the NEFF loads");
                assert_eq!(executable.run_values(&inputs).expect("it runs"), expected, "{name} {dtype} {target}");
            }
        }
    }
}
