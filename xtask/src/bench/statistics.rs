//! Means with confidence intervals.

use std::fmt;

/// Quantiles 0.975 of Student's distribution, by degrees of freedom from 1 on; beyond the last one
/// they are near that of the normal distribution.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
const NORMAL: f64 = 1.96;

/// Some measurements of one quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) mean: f64,
    pub(super) median: f64,
    /// Half of the 95 % confidence interval of the mean; infinite for one value.
    pub(super) half_interval: f64,
}

impl Summary {
    /// Summarizes values, of which there is at least one.
    pub(super) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let half_interval = match values.len() - 1 {
            0 => f64::INFINITY,
            freedom => {
                let quantile = STUDENT.get(freedom - 1).copied().unwrap_or(NORMAL);
                quantile * (squares / freedom as f64 / count).sqrt()
            }
        };
        Self { mean, median, half_interval }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+.1} +- {:.1} ({:+.1})", self.mean, self.half_interval, self.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_intervals() {
        let summary = Summary::of(&[1.0, 3.0, 2.0, 2.5]);
        assert!((summary.mean - 2.125).abs() < 1e-9, "{summary:?}");
        assert!((summary.median - 2.25).abs() < 1e-9, "{summary:?}");
        // Standard deviation 0.8539, standard error 0.42696, 3 degrees of freedom.
        assert!((summary.half_interval - 3.182 * 0.426_956).abs() < 1e-4, "{summary:?}");
        assert_eq!(Summary::of(&[5.0]).half_interval, f64::INFINITY);
        let many = Summary::of(&[1.0, -1.0].repeat(50));
        assert!((many.half_interval - 1.96 * (100.0 / 99.0 / 100.0_f64).sqrt()).abs() < 1e-9, "{many:?}");
    }
}
