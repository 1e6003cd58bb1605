//! The verifier on graphs that no parser made, and how diagnostics look.

use ir::diagnostic::{Diagnostic, RenderStyle, SourceText};
use ir::graph::{Graph, InputRole, Layout, Location, LocationId};
use ir::ops::{Add, Relu};
use ir::random_graph::{RandomGraphOptions, random_graph};
use ir::types::TensorType;
use ir::verify::{GraphPhase, verify};
use ir::{Dtype, ValueId};

fn vector(dtype: Dtype) -> TensorType {
    TensorType::new(dtype, [4])
}

#[test]
fn all_faults_are_reported_with_their_printed_lines() {
    let mut graph = Graph::new("g");
    graph.push_location(Location { line: "model.py:7".to_string(), ..Location::default() });
    let x = graph.push_input("x", vector(Dtype::F32), InputRole::Dynamic);
    let y = graph.push_input("y", vector(Dtype::I32), InputRole::Dynamic);
    graph.push_unchecked(Add.into(), &[x, y], [vector(Dtype::F32)], &[LocationId(0)]);
    graph.push_unchecked(Relu.into(), &[ValueId(4)], [vector(Dtype::F32)], &[]);
    graph.push_unchecked(Relu.into(), &[x], [vector(Dtype::F32), vector(Dtype::F32)], &[LocationId(3)]);
    graph.push_unchecked(Relu.into(), &[], [vector(Dtype::F32)], &[]);
    graph.push_unchecked(Relu.into(), &[ValueId(77)], [vector(Dtype::F32)], &[]);
    graph.push_output(ValueId(78));
    graph.outputs[0].description = "first".to_string();
    graph.layouts = vec![None; 2];
    graph.inputs[1].value = ValueId(0);
    insta::assert_snapshot!(verify(&graph, GraphPhase::Canonical).expect_err("faults"), @r#"
    error[layout]: @g: 2 layouts before placement
    error[input]: @g: input 1: %0 is not defined by input 1
        input %0 "y": f32[4] dynamic
    error[type-mismatch]: @g: node 0 (model.py:7): operand types of `add` differ: f32[4] and i32[4]
        %2 = add %0, %1 : f32[4] #0
    error[use-before-definition]: @g: node 1: `relu` uses %4 before it is defined
        %3 = relu %4 : f32[4]
    error[result-type]: @g: node 2: `relu` gives f32[4], not f32[4], f32[4]
        %4, %5 = relu %0 : (f32[4], f32[4]) #3
    error[location]: @g: node 2: location #3 of 1
        %4, %5 = relu %0 : (f32[4], f32[4]) #3
    error[type-mismatch]: @g: node 3: `relu` takes 1 operand, not 0
        %6 = relu : f32[4]
    error[undefined-value]: @g: node 4: no value is named %77
        %7 = relu %77 : f32[4]
    error[undefined-value]: @g: output 0: no value is named %78
        output %78 "first"
    "#);
}

#[test]
fn a_placed_graph_has_a_layout_entry_for_every_value() {
    let mut graph = Graph::new("g");
    let x = graph.push_input("x", vector(Dtype::F32), InputRole::Dynamic);
    let relu = graph.push_value_of(Relu.into(), &[x], &[]).expect("typed");
    graph.push_output(relu);
    assert!(verify(&graph, GraphPhase::Fused).is_ok());
    assert!(verify(&graph, GraphPhase::Placed).is_err());
    graph.layouts = vec![None, Some(Layout { n_outer: 0, n_partition: 1 })];
    assert!(verify(&graph, GraphPhase::Placed).is_ok());
    assert!(verify(&graph, GraphPhase::Fused).is_err());
    graph.layouts[1] = Some(Layout { n_outer: 1, n_partition: 1 });
    insta::assert_snapshot!(verify(&graph, GraphPhase::Placed).expect_err("too deep"), @r#"error[layout]: @g: layout (1, 1) of %1 splits more dimensions than f32[4] has"#);
}

#[test]
fn random_graphs_are_well_formed_and_differ() {
    let options = RandomGraphOptions::default();
    let graphs: Vec<Graph> = (0..100).map(|seed| random_graph(seed, &options)).collect();
    for (seed, graph) in graphs.iter().enumerate() {
        verify(graph, GraphPhase::Imported).unwrap_or_else(|faults| panic!("{faults}\n{graph}"));
        assert_eq!(graph, &random_graph(seed as u64, &options));
    }
    assert!(graphs.windows(2).all(|pair| pair[0].to_string() != pair[1].to_string()));
}

#[test]
fn a_diagnostic_shows_the_text_around_its_place() {
    let text = "graph @g {\n  %0 = lol : f32[4]\n}\n";
    let source = SourceText::new("dir/g.ir", text);
    let diagnostic = Diagnostic::error("syntax", "no op is named `lol`")
        .at(source.place(18..21))
        .with_context("while reading the graph")
        .with_help("docs/ir.md lists the ops");
    insta::assert_snapshot!(diagnostic.render(&source, RenderStyle::Plain), @r#"
    error[syntax]: dir/g.ir:2:8: no op is named `lol`
       ╭─[dir/g.ir:2:8]
     1 │ graph @g {
     2 │   %0 = lol : f32[4]
       ·        ───
     3 │ }
       ╰────
        while reading the graph
      help: docs/ir.md lists the ops
    "#);
    insta::assert_snapshot!(diagnostic, @r#"
    error[syntax]: dir/g.ir:2:8: no op is named `lol`
        while reading the graph
      help: docs/ir.md lists the ops
    "#);
    let elsewhere = Diagnostic::warning("slow", "it is slow").at_named("encoder.layer.0 (model.py:3)");
    insta::assert_snapshot!(elsewhere.render(&source, RenderStyle::Plain), @r#"warning[slow]: encoder.layer.0 (model.py:3): it is slow"#);
    let at_end = Diagnostic::note("end", "the text ends here").at(source.place(1000..2000));
    insta::assert_snapshot!(at_end.render(&source, RenderStyle::Plain), @r#"
    note[end]: dir/g.ir:4:1: the text ends here
       ╭─[dir/g.ir:4:1]
     3 │ }
       ╰────
    "#);
    assert!(diagnostic.render(&source, RenderStyle::Colored).contains("\u{1b}["));
}

#[test]
fn places_count_characters_from_one() {
    let source = SourceText::new("g.ir", "é\nàb");
    assert_eq!(source.place(0..1).to_string(), "g.ir:1:1");
    // Byte 4 is inside `à`, which begins at byte 3.
    assert_eq!(source.place(4..5).to_string(), "g.ir:2:1");
    assert_eq!(source.place(5..6).to_string(), "g.ir:2:2");
    assert_eq!(source.place(99..99).to_string(), "g.ir:2:3");
}
