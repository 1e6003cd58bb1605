//! The text form: printing and parsing back, what people may write, and faults with their places.

use ir::diagnostic::{RenderStyle, SourceText};
use ir::graph::{Graph, InputRole, Layout, Location, LocationId};
use ir::ops::{Add, Full, LayerNorm, Mul, Op, RmsNorm};
use ir::random_graph::{RandomGraphOptions, random_graph};
use ir::text::{parse_graph, parse_graph_unverified};
use ir::types::{F32Bits, TensorType};
use ir::{Dtype, ValueId};
use proptest::prelude::{ProptestConfig, any, proptest};

fn assert_round_trip(graph: &Graph) {
    let text = graph.to_string();
    let parsed = parse_graph("g.ir", &text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    assert_eq!(&parsed, graph, "{text}");
    assert_eq!(parsed.to_string(), text);
}

/// A graph with several results, locations, strides and an output without a value.
fn sample() -> Graph {
    let mut graph = Graph::new("sample");
    let locations: Vec<LocationId> = ["mul", "norm \"x\"\\\n\u{7}é"]
        .map(|node| {
            graph.push_location(Location {
                node: node.to_string(),
                target: "aten.mul.Tensor".to_string(),
                module: "model.norm".to_string(),
                line: "model.py:12".to_string(),
            })
        })
        .to_vec();
    let x = graph.push_input("x", TensorType::new(Dtype::F32, [4, 8]), InputRole::Dynamic);
    graph.inputs[0].strides = Some(smallvec::smallvec![16, 2]);
    let gamma = graph.push_input("weight", TensorType::new(Dtype::F32, [8]), InputRole::Static);
    let square = graph.push_value_of(Mul.into(), &[x, x], &[locations[1], locations[0]]).expect("typed");
    let saved = graph.push_input("saved", TensorType::scalar(Dtype::F32), InputRole::Saved);
    let norm = LayerNorm { eps: F32Bits::new(1e-5) };
    let norm = graph.push(norm.into(), &[square, gamma], &[locations[1]]).expect("typed");
    let results = graph.node(norm).results.clone();
    let sum = graph.push_value_of(Add.into(), &[results[1], saved], &[]).expect("typed");
    graph.push_output(results[0]);
    graph.push_output(sum);
    graph.outputs[1].description = "PlainAOTOutput(idx=0)".to_string();
    graph.outputs[1].strides = Some(smallvec::smallvec![1, 1]);
    graph.outputs.push(ir::graph::GraphOutput { value: None, strides: None, alias: None, description: String::new() });
    graph
}

#[test]
fn a_graph_prints_in_its_canonical_form() {
    insta::assert_snapshot!(sample().to_string(), @r#"
    graph @sample {
      loc #0 = "mul" "aten.mul.Tensor" "model.norm" "model.py:12"
      loc #1 = "norm \"x\"\\\n\u{7}é" "aten.mul.Tensor" "model.norm" "model.py:12"
      input %0 "x": f32[4, 8] dynamic strides [16, 2]
      input %1 "weight": f32[8] static
      %2 = mul %0, %0 : f32[4, 8] #0 #1
      input %3 "saved": f32[] saved
      %4, %5, %6 = layer_norm %2, %1 {eps = 1e-5} : (f32[4, 8], f32[4, 1], f32[4, 1]) #1
      %7 = add %5, %3 : f32[4, 1]
      output %4 ""
      output %7 "PlainAOTOutput(idx=0)" strides [1, 1]
      output none ""
    }
    "#);
}

#[test]
fn what_is_printed_parses_to_the_same_graph() {
    assert_round_trip(&sample());
    assert_round_trip(&Graph::new("needs quotes"));
    let mut placed = sample();
    placed.layouts = vec![None; placed.n_values()];
    assert_round_trip(&placed);
    placed.layouts[2] = Some(Layout { n_outer: 0, n_partition: 1 });
    assert_round_trip(&placed);
}

#[test]
fn every_op_prints_and_parses() {
    for example in Op::examples() {
        let mut graph = Graph::new(example.op.name());
        let operands: Vec<ValueId> =
            example.operand_types().into_iter().map(|ty| graph.push_input("x", ty, InputRole::Dynamic)).collect();
        let node = graph.push(example.op, &operands, &[]).expect("examples are well-typed");
        graph.push_output(graph.node(node).results[0]);
        assert_round_trip(&graph);
    }
}

#[test]
fn every_float_attribute_survives() {
    for number in
        [0.0, -0.0, 1e-45, 3.4e38, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::from_bits(0xffc0_0001)]
    {
        let mut graph = Graph::new("g");
        let x = graph.push_input("x", TensorType::new(Dtype::F32, [1]), InputRole::Dynamic);
        graph.push(RmsNorm { eps: F32Bits::new(number) }.into(), &[x], &[]).expect("typed");
        let wide = Full::scalar(f64::from(number), Dtype::F32);
        graph.push(wide.into(), &[], &[]).expect("typed");
        assert_round_trip(&graph);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_print_and_parse(seed in any::<u64>()) {
        assert_round_trip(&random_graph(seed, &RandomGraphOptions::default()));
    }

    #[test]
    fn any_text_is_refused_without_panic(text in "\\PC{0,80}") {
        let _ = parse_graph("g.ir", &text);
        let _ = parse_graph("g.ir", &format!("graph @g {{ {text}"));
    }

    #[test]
    fn damaged_text_is_read_or_refused_without_panic(at in 0usize..700, character in any::<char>(), n_cut in 0usize..40) {
        let mut text: Vec<char> = sample().to_string().chars().collect();
        let at = at.min(text.len());
        let end = (at + n_cut).min(text.len());
        text.splice(at..end, [character]);
        let text: String = text.into_iter().collect();
        if let Ok(parsed) = parse_graph_unverified("g.ir", &text) {
            let _ = ir::verify::faults(&parsed.graph, ir::verify::GraphPhase::Placed);
        }
        let _ = parse_graph("g.ir", &text);
    }
}

#[test]
fn people_may_choose_names_and_white_space() {
    let text = r#"
        // Names are renumbered in the order of their definitions.
        graph @g { loc #here = "n" "" "" ""
          input %x.1 "x": f32[2] dynamic   // the first value
          %sum
            = add %x.1, %x.1 : f32[2] #here
          output %sum "" }
    "#;
    let graph = parse_graph("g.ir", text).expect("well-formed");
    insta::assert_snapshot!(graph.to_string(), @r#"
    graph @g {
      loc #0 = "n" "" "" ""
      input %0 "x": f32[2] dynamic
      %1 = add %0, %0 : f32[2] #0
      output %1 ""
    }
    "#);
}

fn faults_of(text: &str) -> String {
    parse_graph("g.ir", text).expect_err("faults").to_string()
}

#[test]
fn every_fault_of_syntax_has_its_line_and_column() {
    let text = r#"graph @g {
  input %0 "x": f33[4] dynamic
  input %1 "y": f32[4] sometimes
  %2 = addd %1, %1 : f32[4]
  %3 = reduce_sum %1 {axis = [0]} : f32[1]
  %4 = reduce_sum %1 : f32[1]
  %5 = slice %1 {axis = 0, start = 0, end = 1, step = -1} : f32[1]
  %6 = full {value = infinity, dtype = f32, shape = []} : f32[]
  %7 = cast %1 {dtype = f32, dtype = f32} : f32[4]
  %8, %9 = relu %1 : f32[4]
  input %10 "z": f32[99999999999999999999999] dynamic
  output %1 unquoted
  output %1 "no end
  ?
"#;
    insta::assert_snapshot!(faults_of(text), @r#"
    error[syntax]: g.ir:2:17: no element type is named `f33`
    error[syntax]: g.ir:3:24: no role is named `sometimes`
    error[syntax]: g.ir:4:8: no op is named `addd`
    error[syntax]: g.ir:5:23: `reduce_sum` has no attribute `axis`; it has `axes`
    error[syntax]: g.ir:6:8: `reduce_sum` needs the attribute `axes`
    error[syntax]: g.ir:7:17: `slice` does not take these attribute values
    error[syntax]: g.ir:8:22: a number, `inf`, `-inf`, `nan` or the bits after `0x` expected
    error[syntax]: g.ir:9:30: attribute `dtype` is given twice
    error[syntax]: g.ir:10:3: 2 results have 1 types
    error[syntax]: g.ir:11:22: a dimension expected
    error[syntax]: g.ir:12:13: the output's description in quotes expected
    error[syntax]: g.ir:13:13: a string does not end on its line
    error[syntax]: g.ir:14:3: unexpected character '?'
    "#);
}

#[test]
fn names_are_defined_once_and_before_the_text_ends() {
    let text = r#"graph @g {
  input %0 "x": f32[4] dynamic
  %1 = add %0, %2 : f32[4] #7
  %1 = relu %0 : f32[4] @(0, 1)
  output %9 ""
}
"#;
    insta::assert_snapshot!(faults_of(text), @r#"
    error[syntax]: g.ir:1:7: layouts stand in a graph that is not `placed`
    error[syntax]: g.ir:3:16: %2 is not defined
    error[syntax]: g.ir:3:28: #7 is not defined
    error[syntax]: g.ir:4:3: %1 is defined twice
    error[syntax]: g.ir:5:10: %9 is not defined
    "#);
    insta::assert_snapshot!(faults_of(""), @r#"error[syntax]: g.ir:1:1: `graph` expected"#);
    insta::assert_snapshot!(faults_of("graph @g {"), @r#"error[syntax]: g.ir:1:11: `}` expected"#);
    insta::assert_snapshot!(faults_of("graph @g {}\n}"), @r#"error[syntax]: g.ir:2:1: the end of the text after `}` expected"#);
}

#[test]
fn every_fault_of_the_graph_has_its_line_and_column() {
    let text = r#"graph @g {
  input %0 "x": f32[4] dynamic strides [1, 1]
  input %1 "y": bf16[3] dynamic
  %2 = add %0, %1 : f32[4]
  %3 = relu %5 : f32[4]
  %4 = relu %0 : f32[5]
  %5 = relu %0, %0 : f32[4]
  output %4 "" strides []
}
"#;
    insta::assert_snapshot!(faults_of(text), @r#"
    error[strides]: g.ir:2:3: 2 strides for f32[4]
    error[type-mismatch]: g.ir:4:3: operand types of `add` differ: f32[4] and bf16[3]
    error[use-before-definition]: g.ir:5:3: `relu` uses %5 before it is defined
    error[result-type]: g.ir:6:3: `relu` gives f32[4], not f32[5]
    error[type-mismatch]: g.ir:7:3: `relu` takes 1 operand, not 2
    error[strides]: g.ir:8:3: 0 strides for f32[5]
    "#);
}

#[test]
fn strides_that_no_buffer_has_are_refused() {
    let text = r#"graph @g {
  input %0 "x": f32[4, 4] dynamic strides [-1, 1]
  input %1 "y": f32[4, 4] dynamic strides [9223372036854775807, 9223372036854775807]
  input %2 "z": f32[1, 4] dynamic strides [9223372036854775807, 1]
  input %3 "e": f32[0, 4] dynamic strides [4, 1]
  output %2 "" strides [1, 1099511627776]
}
"#;
    insta::assert_snapshot!(faults_of(text), @r#"
    error[strides]: g.ir:2:3: strides [-1, 1] step backwards
    error[strides]: g.ir:3:3: strides [9223372036854775807, 9223372036854775807] of f32[4, 4] reach beyond any memory
    error[strides]: g.ir:6:3: strides [1, 1099511627776] of f32[1, 4] reach beyond any memory
    "#);
}

#[test]
fn the_number_of_faults_and_what_is_drawn_of_them_is_bounded() {
    let name = "g.ir";
    let unknown = "~".repeat(100_000);
    let many = (1..5000).map(|node| format!("%{node} = relu %{node} : f32[4] ")).collect::<String>();
    let many = format!("graph @g {{ {many}}}");
    for text in [&unknown, &many] {
        let faults = ir::text::parse_graph(name, text).expect_err("faults");
        assert_eq!(faults.len(), 100);
        let drawn = faults.render(&SourceText::new(name, text), RenderStyle::Plain);
        assert!(drawn.len() < 40_000, "{} bytes are drawn of {}", drawn.len(), text.len());
    }
}

#[test]
fn a_type_of_too_many_dimensions_is_refused() {
    let dims = vec!["1"; 65].join(", ");
    let text = format!("graph @g {{\n  input %0 \"x\": f32[{dims}] dynamic\n}}\n");
    insta::assert_snapshot!(faults_of(&text), @r#"error[syntax]: g.ir:2:20: 65 dimensions are more than 64"#);
}
