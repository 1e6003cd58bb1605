//! A product of two matrices.

use std::fmt::Write;

use ir::Graph;
use ir::text::parse_graph;

/// A product of two bf16 matrices; the left one may be stored as `[K, M]`.
pub fn product(transposed: bool, [n_rows, n_inner, n_columns]: [usize; 3]) -> Graph {
    let lhs = if transposed { format!("{n_inner}, {n_rows}") } else { format!("{n_rows}, {n_inner}") };
    let mut text = String::from("graph @matmul {\n");
    writeln!(text, "  input %0 \"a\": bf16[{lhs}] dynamic").expect("strings grow");
    writeln!(text, "  input %1 \"b\": bf16[{n_inner}, {n_columns}] dynamic").expect("strings grow");
    if transposed {
        writeln!(text, "  %2 = transpose %0 {{perm = [1, 0]}} : bf16[{n_rows}, {n_inner}]").expect("strings grow");
    }
    let (lhs, result) = if transposed { (2, 3) } else { (0, 2) };
    writeln!(text, "  %{result} = matmul %{lhs}, %1 {{transpose_lhs = 0, transpose_rhs = 0, dtype = bf16}} : bf16[{n_rows}, {n_columns}]").expect("strings grow");
    writeln!(text, "  output %{result} \"\"\n}}").expect("strings grow");
    parse_graph("matmul", &text).expect("the text is well formed")
}
