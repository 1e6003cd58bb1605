//! Overloads that write or add at indices, imported, compiled and run: against sums made here, with
//! ids that occur several times and numbers that are none.

use compiler::execute::Executable;
use compiler::import::{ImportError, parse_json};
use compiler::pipeline::{Options, Unwatched, compile};
use ir::Graph;
use ir::reference::{Lanes, Rounding, Value, evaluate};
use ir::target::TargetName;

/// A graph of one call: inputs as (shape, element type), arguments and result as JSON.
fn document(inputs: &[(&[usize], &str)], target: &str, arguments: &str, result: (&[usize], &str)) -> String {
    let tensor = |(shape, dtype): (&[usize], &str)| {
        let strides: Vec<usize> = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
        format!(r#"{{"shape":{shape:?},"stride":{strides:?},"dtype":"{dtype}","device":"cpu"}}"#)
    };
    let declared: Vec<String> = inputs
        .iter()
        .enumerate()
        .map(|(id, &input)| format!(r#"{{"id":{id},"name":"in{id}","role":"input","out":{}}}"#, tensor(input)))
        .collect();
    let id = inputs.len();
    format!(
        r#"{{"format":"fxg-json/1","name":"scatter","kind":"inference","source":{{}},"inputs":[{}],"nodes":[{{"id":{id},"name":"n","target":"{target}","args":{arguments},"kwargs":{{}},"out":{}}}],"outputs":[{{"ref":{id},"desc":""}}],"constants":{{}}}}"#,
        declared.join(","),
        tensor(result)
    )
}

fn import(text: &str) -> Graph {
    parse_json(text.as_bytes()).unwrap_or_else(|error| panic!("{error:?}\n{text}"))
}

fn run(graph: &Graph, inputs: &[Value], target: TargetName) -> Value {
    let options = Options { target, ..Options::default() };
    let compiled = compile(graph, &options, &mut Unwatched).unwrap_or_else(|error| panic!("{target}: {error}"));
    let executable = Executable::load(&compiled.neff.expect("a NEFF")).expect("the NEFF loads");
    executable.run_values(inputs).expect("it runs").remove(0).expect("an output")
}

/// Evaluates and runs a graph on every chip; numbers agree to `tolerance` of the largest one.
fn expect(text: &str, inputs: &[Value], expected: &[f64], tolerance: f64) {
    let graph = import(text);
    let evaluated = evaluate(&graph, inputs, Rounding::None).expect("the graph has values").remove(0).expect("a value");
    let scale = expected.iter().filter(|lane| lane.is_finite()).fold(1.0f64, |most, lane| most.max(lane.abs()));
    let agrees = |found: &Value| {
        let found: Vec<f64> = match &found.lanes {
            Lanes::Float(lanes) => lanes.clone(),
            Lanes::Int(lanes) => lanes.iter().map(|&lane| lane as f64).collect(),
            Lanes::Bool(_) => panic!("numbers are expected"),
        };
        let close = |(&x, &y): (&f64, &f64)| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * scale;
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(close), "{found:?}\n{expected:?}");
    };
    agrees(&evaluated);
    for target in TargetName::ALL {
        agrees(&run(&graph, inputs, target));
    }
}

/// Numbers with few bits, which no sum of some rounds.
fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 37 + 11) % 64) as f64 / 8.0 - 4.0).collect()
}

/// The table with row i of values added to row `ids[i]`.
fn added(table: &[f64], ids: &[i64], values: &[f64], n_rows: usize) -> Vec<f64> {
    let n_columns = table.len() / n_rows;
    let mut sums = table.to_vec();
    for (position, &id) in ids.iter().enumerate() {
        let row = if id < 0 { id + n_rows as i64 } else { id } as usize;
        for column in 0..n_columns {
            sums[row * n_columns + column] += values[position * n_columns + column];
        }
    }
    sums
}

fn index_put_of(n_rows: usize, n_ids: usize, n_columns: usize, dtype: &str) -> String {
    let table: &[usize] = &[n_rows, n_columns];
    document(
        &[(table, dtype), (&[n_ids], "int64"), (&[n_ids, n_columns], dtype)],
        "aten.index_put.default",
        r#"[{"ref":0},[{"ref":1}],{"ref":2},true]"#,
        (table, dtype),
    )
}

#[test]
fn rows_of_equal_ids_add_up_in_small_and_large_tables() {
    for (n_rows, n_ids, n_columns) in [(7, 5, 3), (300, 150, 9), (1000, 140, 5), (513, 1, 4)] {
        let (table, values) = (numbers(n_rows * n_columns), numbers(n_ids * n_columns));
        let ids: Vec<i64> =
            (0..n_ids as i64).map(|at| at * at % (n_rows as i64 / 3) - i64::from(at % 4 == 0)).collect();
        let expected = added(&table, &ids, &values, n_rows);
        let inputs = [
            Value::floats(&[n_rows, n_columns], table),
            Value::ints(&[n_ids], ids),
            Value::floats(&[n_ids, n_columns], values),
        ];
        expect(&index_put_of(n_rows, n_ids, n_columns, "float32"), &inputs, &expected, 0.0);
        expect(&index_put_of(n_rows, n_ids, n_columns, "bfloat16"), &inputs, &expected, 1.0 / 256.0);
    }
}

#[test]
fn infinities_and_nans_stay_in_their_elements() {
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    for n_rows in [6, 600] {
        let table = vec![1.0; n_rows * 2];
        let ids = [4, 1, 4, 1, 0, 4];
        let values = [infinity, 2.0, -infinity, infinity, 3.0, infinity, 5.0, -infinity, nan, 1.0, infinity, 8.0];
        let mut expected = added(&table, &ids, &values, n_rows);
        assert!(expected[2] == -infinity && expected[3].is_nan() && expected[0].is_nan() && expected[8] == infinity);
        expected[9] = infinity;
        let inputs =
            [Value::floats(&[n_rows, 2], table), Value::ints(&[6], ids), Value::floats(&[6, 2], values.to_vec())];
        expect(&index_put_of(n_rows, 6, 2, "float32"), &inputs, &expected, 0.0);
    }
}

#[test]
fn index_tensors_on_adjacent_axes_name_single_elements() {
    let shape: &[usize] = &[3, 4, 5];
    let document = |accumulate: bool| {
        document(
            &[(shape, "float32"), (&[4], "int64"), (&[4], "int64"), (&[3, 4], "float32")],
            "aten.index_put.default",
            &format!(r#"[{{"ref":0}},[null,{{"ref":1}},{{"ref":2}}],{{"ref":3}},{accumulate}]"#),
            (shape, "float32"),
        )
    };
    let (rows, columns) = ([1, -1, 1, 0], [2, 0, 2, -5]);
    let (operand, values) = (numbers(60), numbers(12));
    for accumulate in [true, false] {
        let mut expected = operand.clone();
        for batch in 0..3 {
            for at in 0..4 {
                let wrap = |index: i64, dim: i64| if index < 0 { index + dim } else { index } as usize;
                let place = batch * 20 + wrap(rows[at], 4) * 5 + wrap(columns[at], 5);
                let kept = if accumulate { expected[place] } else { 0.0 };
                expected[place] = kept + values[batch * 4 + at];
            }
        }
        let inputs = [
            Value::floats(shape, operand.clone()),
            Value::ints(&[4], rows),
            Value::ints(&[4], columns),
            Value::floats(&[3, 4], values.clone()),
        ];
        expect(&document(accumulate), &inputs, &expected, 0.0);
    }
}

#[test]
fn elements_are_scattered_along_an_axis_and_the_rest_stays() {
    let shape: &[usize] = &[3, 6];
    let index = [5, 0, 5, 2, 2, 1];
    let (operand, source) = (numbers(18), numbers(12));
    let document = |target: &str, source: &str| {
        document(
            &[(shape, "float32"), (&[2, 3], "int64"), (&[3, 4], "float32")],
            target,
            &format!(r#"[{{"ref":0}},1,{{"ref":1}},{source}]"#),
            (shape, "float32"),
        )
    };
    let inputs =
        [Value::floats(shape, operand.clone()), Value::ints(&[2, 3], index), Value::floats(&[3, 4], source.clone())];
    let expected = |combine: &dyn Fn(f64, f64) -> f64| {
        let mut expected = operand.clone();
        for (at, &column) in index.iter().enumerate() {
            let place = at / 3 * 6 + column as usize;
            expected[place] = combine(expected[place], source[at / 3 * 4 + at % 3]);
        }
        expected
    };
    expect(&document("aten.scatter_add.default", r#"{"ref":2}"#), &inputs, &expected(&|x, y| x + y), 0.0);
    expect(&document("aten.scatter.src", r#"{"ref":2}"#), &inputs, &expected(&|_, y| y), 0.0);
    expect(&document("aten.scatter.value", "-1.5"), &inputs, &expected(&|_, _| -1.5), 0.0);
}

#[test]
fn columns_are_scattered_along_the_first_axis_of_integers() {
    let text = document(
        &[(&[4, 2], "int64"), (&[1, 2], "int64")],
        "aten.scatter.value",
        r#"[{"ref":0},0,{"ref":1},7]"#,
        (&[4, 2], "int64"),
    );
    let inputs = [Value::ints(&[4, 2], [0, 1, 2, 3, 4, 5, 6, 8]), Value::ints(&[1, 2], [3, 0])];
    expect(&text, &inputs, &[0.0, 7.0, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0], 0.0);
}

#[test]
fn slices_are_added_with_a_factor() {
    let shape: &[usize] = &[2, 5];
    let text = document(
        &[(shape, "float32"), (&[3], "int64"), (&[2, 3], "float32")],
        "aten.index_add.default",
        r#"[{"ref":0},1,{"ref":1},{"ref":2}]"#,
        (shape, "float32"),
    )
    .replace(r#""kwargs":{}"#, r#""kwargs":{"alpha":2}"#);
    let inputs = [
        Value::floats(shape, numbers(10)),
        Value::ints(&[3], [4, 1, 4]),
        Value::floats(&[2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    ];
    let mut expected = numbers(10);
    for (place, number) in [(4, 8.0), (1, 4.0), (9, 20.0), (6, 10.0)] {
        expected[place] += number;
    }
    expect(&text, &inputs, &expected, 0.0);
}

#[test]
fn an_embedding_has_no_gradient_in_its_padding_row() {
    let text = document(
        &[(&[2, 3, 4], "float32"), (&[2, 3], "int64")],
        "aten.embedding_dense_backward.default",
        r#"[{"ref":0},{"ref":1},9,2,false]"#,
        (&[9, 4], "float32"),
    );
    let ids = [1, 2, 8, 1, 2, 0];
    let gradient = numbers(24);
    let mut expected = added(&[0.0; 36], &ids, &gradient, 9);
    expected[8..12].fill(0.0);
    let inputs = [Value::floats(&[2, 3, 4], gradient), Value::ints(&[2, 3], ids)];
    expect(&text, &inputs, &expected, 0.0);
}

#[test]
fn what_is_not_added_or_scattered_has_a_reason() {
    let integers = index_put_of(7, 5, 3, "int64");
    let long = document(
        &[(&[2, 100], "float32"), (&[2, 65], "int64")],
        "aten.scatter.value",
        r#"[{"ref":0},1,{"ref":1},1.0]"#,
        (&[2, 100], "float32"),
    );
    for (text, reason) in [(integers, "adding i64 at indices"), (long, "scattering 65 elements along an axis")] {
        let Err(ImportError::Unsupported(nodes)) = parse_json(text.as_bytes()) else { panic!("it is refused") };
        assert_eq!(nodes[0].reason, reason);
    }
}

#[test]
fn an_element_of_each_row_is_taken_exactly_in_every_float_type() {
    for dtype in ["float32", "bfloat16", "float16"] {
        let text = document(
            &[(&[4, 300], dtype), (&[4, 1], "int64")],
            "aten.gather.default",
            r#"[{"ref":0},1,{"ref":1}]"#,
            (&[4, 1], dtype),
        );
        let graph = import(&text);
        let data: Vec<f64> = (0..1200).map(|at| f64::from(at % 251) / 4.0 - 30.0).collect();
        let index = [0_i64, 299, 17, 17];
        let inputs = [Value::floats(&[4, 300], data.clone()), Value::ints(&[4, 1], index)];
        let expected: Vec<f64> = (0..4).map(|row| data[row * 300 + index[row] as usize]).collect();
        for target in TargetName::ALL {
            assert_eq!(run(&graph, &inputs, target), Value::floats(&[4, 1], expected.clone()), "{dtype} on {target}");
        }
    }
}
