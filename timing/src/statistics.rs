//! Errors and ranks.

/// What is said of a set of errors.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Summary {
    pub count: usize,
    /// Of the absolute errors, as shares of the measured values.
    pub median: f64,
    /// Nine of ten errors are at most this.
    pub p90: f64,
    pub worst: f64,
}

impl Summary {
    /// Of signed errors.
    pub fn of(errors: impl IntoIterator<Item = f64>) -> Summary {
        let mut sizes: Vec<f64> = errors.into_iter().map(f64::abs).collect();
        sizes.sort_by(f64::total_cmp);
        let Some(&worst) = sizes.last() else { return Summary::default() };
        let middle = sizes.len() / 2;
        let median = if sizes.len() % 2 == 1 { sizes[middle] } else { (sizes[middle - 1] + sizes[middle]) / 2.0 };
        let p90 = sizes[(sizes.len() * 9).div_ceil(10) - 1];
        Summary { count: sizes.len(), median, p90, worst }
    }
}

/// Spearman's rank correlation; ties take the mean of their ranks. 1 for fewer than two pairs.
pub fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let first = ranks(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
    let second = ranks(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let (mut product, mut square1, mut square2) = (0.0, 0.0, 0.0);
    for (a, b) in first.iter().zip(&second) {
        product += (a - mean) * (b - mean);
        square1 += (a - mean) * (a - mean);
        square2 += (b - mean) * (b - mean);
    }
    if square1 == 0.0 || square2 == 0.0 { 1.0 } else { product / (square1 * square2).sqrt() }
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let mut end = start + 1;
        while end < order.len() && values[order[end]] == values[order[start]] {
            end += 1;
        }
        for &position in &order[start..end] {
            ranks[position] = (start + end + 1) as f64 / 2.0;
        }
        start = end;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_and_ranks_are_the_textbook_ones() {
        let summary = Summary::of([-0.1, 0.2, 0.05, -0.4]);
        assert_eq!((summary.count, summary.worst, summary.p90), (4, 0.4, 0.4));
        assert!((summary.median - 0.15).abs() < 1e-12);
        assert_eq!(Summary::of([]), Summary::default());
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        // One exchange of neighbours among six: 1 - 6 * 2 / (6 * 35).
        let pairs = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0), (5.0, 6.0), (6.0, 5.0)];
        assert!((rank_correlation(&pairs) - (1.0 - 12.0 / 210.0)).abs() < 1e-12);
    }
}
