//! Judging an output: never less accurate than eager.
//!
//! With output o, eager result E and truth t (the graph in f64 without roundings), a float output
//! passes when max|o-t| <= k max|E-t| + k (eps/2) max|t| and rms(o-t) <= 1.5 rms(E-t) + (eps/2)
//! rms(t), where k is 1 for outputs of 16 bits and fewer and 2 for wider ones, and when NaN and
//! infinities lie where E's do. Integers and bools equal E.

use super::{Lanes, Value};
use crate::types::{Dtype, Shape, packed_strides};

/// One element of an output beside what it is judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct WorstElement {
    pub position: Shape,
    pub output: f64,
    pub eager: f64,
    pub truth: f64,
}

/// How an output compares with eager and truth.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// max|o-t|; for integers and bools max|o-E|.
    pub max_abs_error: f64,
    /// `max_abs_error` / max|t|; infinite where an error stands against a truth of zeros.
    pub max_rel_error: f64,
    /// max|E-t|; 0 for integers and bools.
    pub eager_abs_error: f64,
    /// What `max_abs_error` may be.
    pub allowed_abs_error: f64,
    /// rms(o-t).
    pub rms_error: f64,
    /// rms(E-t).
    pub eager_rms_error: f64,
    /// The element with the largest error, or the first whose NaN or infinity is out of place.
    pub worst: Option<WorstElement>,
    /// Why the output does not pass; `None` when it does.
    pub failure: Option<String>,
}

impl Comparison {
    /// Whether the output passes.
    pub fn passes(&self) -> bool {
        self.failure.is_none()
    }
}

/// Judges one output of element type `dtype`.
pub fn compare(output: &Value, eager: &Value, truth: &Value, dtype: Dtype) -> Comparison {
    if output.shape != eager.shape || eager.shape != truth.shape {
        let shapes = format!("{:?}, eager {:?}, truth {:?}", output.shape, eager.shape, truth.shape);
        return without_numbers(format!("shapes differ: output {shapes}"));
    }
    match (&output.lanes, &eager.lanes, &truth.lanes) {
        (Lanes::Float(output_lanes), Lanes::Float(eager), Lanes::Float(truth)) => {
            compare_floats(&output.shape, output_lanes, eager, truth, dtype)
        }
        (Lanes::Int(output_lanes), Lanes::Int(eager), Lanes::Int(_)) => {
            let wide = |lanes: &[i64]| lanes.iter().map(|&lane| lane as f64).collect::<Vec<_>>();
            let first = output_lanes.iter().zip(eager).position(|(output, eager)| output != eager);
            compare_exact(&output.shape, &wide(output_lanes), &wide(eager), first)
        }
        (Lanes::Bool(output_lanes), Lanes::Bool(eager), Lanes::Bool(_)) => {
            let wide = |lanes: &[bool]| lanes.iter().map(|&lane| f64::from(u8::from(lane))).collect::<Vec<_>>();
            let first = output_lanes.iter().zip(eager).position(|(output, eager)| output != eager);
            compare_exact(&output.shape, &wide(output_lanes), &wide(eager), first)
        }
        (Lanes::Float(_) | Lanes::Int(_) | Lanes::Bool(_), _, _) => {
            without_numbers("output, eager and truth are of different kinds".to_string())
        }
    }
}

/// Largest magnitude and root mean square of a sequence.
#[derive(Copy, Clone, Default)]
struct Norms {
    max: f64,
    square_sum: f64,
    n_elements: usize,
}

impl Norms {
    fn add(&mut self, number: f64) {
        self.max = self.max.max(number.abs());
        self.square_sum += number * number;
        self.n_elements += 1;
    }

    fn rms(self) -> f64 {
        if self.n_elements == 0 { 0.0 } else { (self.square_sum / self.n_elements as f64).sqrt() }
    }
}

fn compare_floats(shape: &[usize], output: &[f64], eager: &[f64], truth: &[f64], dtype: Dtype) -> Comparison {
    let (mut error, mut eager_error, mut size) = (Norms::default(), Norms::default(), Norms::default());
    let mut worst: Option<(f64, usize)> = None;
    let mut misplaced = None;
    for (flat, ((&output, &eager), &truth)) in output.iter().zip(eager).zip(truth).enumerate() {
        if !eager.is_finite() || !output.is_finite() {
            if !same_special(output, eager) {
                misplaced = misplaced.or(Some(flat));
            }
            continue;
        }
        // Where only the truth is not finite (an overflow that roundings avoid), eager stands for it.
        let truth = if truth.is_finite() { truth } else { eager };
        let distance = (output - truth).abs();
        error.add(distance);
        eager_error.add(eager - truth);
        size.add(truth);
        if worst.is_none_or(|(largest, _)| distance > largest) {
            worst = Some((distance, flat));
        }
    }
    let element = |flat: usize| WorstElement {
        position: position(shape, flat),
        output: output[flat],
        eager: eager[flat],
        truth: truth[flat],
    };
    let bounds = Bounds::of(eager_error, size, dtype);
    let failure = match misplaced {
        Some(flat) => Some(format!("{:?} where eager has {:?}", output[flat], eager[flat])),
        None => bounds.failure(error),
    };
    Comparison {
        max_abs_error: error.max,
        max_rel_error: ratio(error.max, size.max),
        eager_abs_error: eager_error.max,
        allowed_abs_error: bounds.max,
        rms_error: error.rms(),
        eager_rms_error: eager_error.rms(),
        worst: misplaced.or(worst.map(|(_, flat)| flat)).map(element),
        failure,
    }
}

/// What errors may be.
struct Bounds {
    max: f64,
    rms: f64,
}

impl Bounds {
    fn of(eager_error: Norms, size: Norms, dtype: Dtype) -> Bounds {
        let factor = if dtype.size_bytes() <= 2 { 1.0 } else { 2.0 };
        let half_epsilon = dtype.epsilon().unwrap_or(0.0) / 2.0;
        Bounds {
            max: factor * eager_error.max + factor * half_epsilon * size.max,
            rms: 1.5 * eager_error.rms() + half_epsilon * size.rms(),
        }
    }

    fn failure(&self, error: Norms) -> Option<String> {
        if error.max > self.max {
            return Some(format!("largest error {:e} is above {:e}", error.max, self.max));
        }
        (error.rms() > self.rms).then(|| format!("rms error {:e} is above {:e}", error.rms(), self.rms))
    }
}

/// `first` is the position of the first lane that differs.
fn compare_exact(shape: &[usize], output: &[f64], eager: &[f64], first: Option<usize>) -> Comparison {
    let (mut error, mut size) = (Norms::default(), Norms::default());
    for (&output, &eager) in output.iter().zip(eager) {
        error.add(output - eager);
        size.add(eager);
    }
    let worst = first.map(|flat| WorstElement {
        position: position(shape, flat),
        output: output[flat],
        eager: eager[flat],
        truth: eager[flat],
    });
    let failure = worst.as_ref().map(|worst| format!("{} where eager has {}", worst.output, worst.eager));
    Comparison {
        max_abs_error: error.max,
        max_rel_error: ratio(error.max, size.max),
        eager_abs_error: 0.0,
        allowed_abs_error: 0.0,
        rms_error: error.rms(),
        eager_rms_error: 0.0,
        worst,
        failure,
    }
}

fn without_numbers(failure: String) -> Comparison {
    Comparison {
        max_abs_error: f64::INFINITY,
        max_rel_error: f64::INFINITY,
        eager_abs_error: 0.0,
        allowed_abs_error: 0.0,
        rms_error: f64::INFINITY,
        eager_rms_error: 0.0,
        worst: None,
        failure: Some(failure),
    }
}

fn same_special(output: f64, eager: f64) -> bool {
    (output.is_nan() && eager.is_nan()) || output == eager
}

fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}

fn position(shape: &[usize], flat: usize) -> Shape {
    packed_strides(shape).iter().zip(shape).map(|(&stride, &dim)| flat / stride.max(1) % dim.max(1)).collect()
}
