//! Counts that are kept beside what they count.

/// Takes `by` from a count that is at least that. Below it the two have drifted apart, and the
/// checks of the tests say so.
pub(crate) fn less(count: usize, by: usize) -> usize {
    let less = count.checked_sub(by);
    debug_assert!(less.is_some(), "{by} of {count}");
    less.unwrap_or(0)
}
