//! Numbers in words.

/// Parses digits as the server does: no sign, no space, no leading zero.
pub(super) fn integer(given: &[u8]) -> Option<u64> {
    /// So many digits always fit, and every number that is asked for has fewer.
    const DIGITS_MAX: usize = 19;
    let has_leading_zero = given.len() > 1 && given.first() == Some(&b'0');
    if given.is_empty() || given.len() > DIGITS_MAX || has_leading_zero {
        return None;
    }
    let mut number: u64 = 0;
    for byte in given {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.wrapping_mul(10).wrapping_add(digit.into());
    }
    Some(number)
}
