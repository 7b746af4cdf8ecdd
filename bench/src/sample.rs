//! Measured values of the same kind.

/// All values of one measurement.
#[derive(Default, Clone)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The value that `percent` of all values do not exceed.
    #[track_caller]
    pub fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    pub fn min(&self) -> f64 {
        self.percentile(0)
    }

    pub fn max(&self) -> f64 {
        self.percentile(100)
    }
}
