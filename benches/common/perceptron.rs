//! A graph whose program is long.

use std::fmt::Write;

use ir::Graph;
use ir::text::parse_graph;

/// Layers, for more than 100,000 instructions.
const N_LAYERS: usize = 1_250;

/// Layers of a perceptron, every second one with a residual.
pub fn perceptron() -> Graph {
    let mut text = String::from("graph @stack {\n  input %0 \"x\": bf16[1024, 512] dynamic\n");
    for layer in 0..N_LAYERS {
        writeln!(text, "  input %{} \"w{layer}\": bf16[512, 512] static", layer + 1).expect("strings grow");
    }
    let (mut last, mut next) = (0, N_LAYERS + 1);
    for layer in 0..N_LAYERS {
        let activation = ["none", "gelu", "silu", "none"][layer % 4];
        let weight = layer + 1;
        writeln!(
            text,
            "  %{next} = fused_matmul %{last}, %{weight} {{transpose_lhs = 0, transpose_rhs = 0, activation = \
             {activation}, dtype = bf16}} : bf16[1024, 512]"
        )
        .expect("strings grow");
        let mut result = next;
        if layer % 2 == 1 {
            next += 1;
            writeln!(text, "  %{next} = add %{last}, %{result} : bf16[1024, 512]").expect("strings grow");
            result = next;
        }
        (last, next) = (result, next + 1);
    }
    writeln!(text, "  output %{last} \"\"\n}}").expect("strings grow");
    parse_graph("stack", &text).expect("the text is well formed")
}
