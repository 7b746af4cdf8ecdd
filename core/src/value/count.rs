//! Counters that are stored beside what they count.

/// Subtracts `by` from a count that is at least that great. If it is smaller, the counter has
/// drifted, which the tests' checks report.
pub(crate) fn less(count: usize, by: usize) -> usize {
    let less = count.checked_sub(by);
    debug_assert!(less.is_some(), "{by} of {count}");
    less.unwrap_or(0)
}
