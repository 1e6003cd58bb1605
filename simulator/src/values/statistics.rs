//! Batch-norm statistics in f32.

use ir::program::AluOp;

use super::alu::reduce;

/// (count, mean, count * variance) of the even, then of the odd elements. The variance is the
/// population's.
pub(crate) fn of_row(row: &[f32]) -> [f32; 6] {
    let half = |first: usize| -> [f32; 3] {
        let mut values: Vec<f32> = row.iter().copied().skip(first).step_by(2).collect();
        let count = values.len() as f32;
        if values.is_empty() {
            return [0.0; 3];
        }
        let mean = reduce(AluOp::Add, &values) / count;
        values.iter_mut().for_each(|value| *value = (*value - mean) * (*value - mean));
        [count, mean, reduce(AluOp::Add, &values)]
    };
    let ([count0, mean0, spread0], [count1, mean1, spread1]) = (half(0), half(1));
    [count0, mean0, spread0, count1, mean1, spread1]
}

/// Merges (count, mean, count * variance) triples to (mean, variance), one after the other.
pub(crate) fn merge(triples: &[f32]) -> [f32; 2] {
    let (mut count, mut mean, mut spread) = (0.0f32, 0.0f32, 0.0f32);
    for triple in triples.chunks_exact(3) {
        let total = count + triple[0];
        if triple[0] == 0.0 {
            continue;
        }
        let delta = triple[1] - mean;
        let share = triple[0] / total;
        mean += delta * share;
        spread += triple[2] + delta * delta * count * share;
        count = total;
    }
    [mean, spread / count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_halves_merge_to_those_of_the_row() {
        let row: Vec<f32> = (0..10).map(|i| (i * i) as f32).collect();
        let stats = of_row(&row);
        assert_eq!((stats[0], stats[1]), (5.0, (4 + 16 + 36 + 64) as f32 / 5.0));
        let [mean, variance] = merge(&stats);
        let exact_mean = row.iter().sum::<f32>() / 10.0;
        let exact = row.iter().map(|x| (x - exact_mean).powi(2)).sum::<f32>() / 10.0;
        assert!((mean - exact_mean).abs() < 1e-4 && (variance - exact).abs() < exact * 1e-5, "{mean} {variance}");
        assert_eq!(of_row(&[3.0]), [1.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(merge(&of_row(&[3.0])), [3.0, 0.0]);
    }
}
