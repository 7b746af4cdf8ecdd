//! A histogram of `INFO rlock`: how long requests waited, holds lasted, or grants waited for
//! replicas.

use std::time::Duration;

use crate::snapshot::Numbers;

/// Times by bucket, as the server counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Pairs: the upper bound of a bucket in microseconds (`u64::MAX` for none), and how many times
    /// are at most that long.
    pub buckets: Vec<(u64, u64)>,
    /// The number of all times.
    pub count: u64,
    /// Their sum in microseconds.
    pub sum_us: u64,
}

/// An estimate: the server only counts how many times fell into each bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Percentile {
    /// About this long.
    About(Duration),
    /// Longer than the greatest bound.
    Over(Duration),
}

impl Histogram {
    /// The histogram of `kind` (`wait`, `hold`, `acks`); `None` if the server does not have it.
    #[must_use]
    pub fn of(numbers: &Numbers, kind: &str) -> Option<Histogram> {
        let count = *numbers.get(&format!("{kind}_us_count"))?;
        let sum_us = numbers.get(&format!("{kind}_us_sum")).copied().unwrap_or(0);
        let prefix = format!("{kind}_us_le_");
        let bounds = numbers.iter().filter_map(|(name, &reached)| {
            Some((name.strip_prefix(&prefix)?.parse().unwrap_or(u64::MAX), reached))
        });
        let mut buckets: Vec<(u64, u64)> = bounds.collect();
        buckets.sort_unstable();
        Some(Histogram { buckets, count, sum_us })
    }

    /// What was added since `before`. A server that restarted counts from 0 again.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let old = |at: usize| before.buckets.get(at).map_or(0, |&(_, reached)| reached);
        let each = self.buckets.iter().enumerate();
        Histogram {
            buckets: each
                .map(|(at, &(bound, reached))| (bound, reached.saturating_sub(old(at))))
                .collect(),
            count: self.count.saturating_sub(before.count),
            sum_us: self.sum_us.saturating_sub(before.sum_us),
        }
    }

    /// The mean; `None` if no time was counted.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        Some(Duration::from_micros(self.sum_us.checked_div(self.count)?))
    }

    /// The time that the share `share` (0 to 1) of all times did not exceed. Within a bucket, the
    /// logarithms of the times are assumed to be evenly distributed.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Percentile {
        #[expect(clippy::cast_precision_loss, reason = "a count is shown in two digits")]
        let float = |number: u64| number as f64;
        let wanted = float(self.count) * share;
        let (mut floor, mut below) = (1.0_f64, 0.0);
        for &(bound, reached) in &self.buckets {
            if bound == u64::MAX {
                break;
            }
            let (bound, reached) = (float(bound), float(reached));
            if reached >= wanted {
                let part = if reached > below { (wanted - below) / (reached - below) } else { 1.0 };
                let micros = floor * (bound / floor).powf(part);
                return Percentile::About(Duration::from_secs_f64(micros / 1e6));
            }
            (floor, below) = (bound, reached);
        }
        Percentile::Over(Duration::from_secs_f64(floor / 1e6))
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::{Histogram, Percentile};
    use std::time::Duration;

    #[test]
    fn percentiles_lie_within_their_bucket() {
        // 50 below 100 us, 40 more below 1 ms, 9 more below 10 ms, one more beyond all bounds.
        let buckets = vec![(100, 50), (1_000, 90), (10_000, 99), (u64::MAX, 100)];
        let spans = Histogram { buckets, count: 100, sum_us: 0 };
        for (share, micros) in [(0.5, 100), (0.25, 10), (0.7, 316), (0.9, 1000)] {
            let Percentile::About(time) = spans.percentile(share) else {
                panic!("{share} has a bucket")
            };
            assert!(time.as_micros().abs_diff(micros) <= 1, "{share}: {time:?}");
        }
        assert_eq!(spans.percentile(0.999), Percentile::Over(Duration::from_millis(10)));
    }
}
