//! Numbers in words.

/// Parses digits as the server does: no sign, no space, no leading zero.
pub(super) fn integer(given: &[u8]) -> Option<u64> {
    /// Numbers of this many digits always fit, and every number that a command takes has fewer.
    const DIGITS_MAX: usize = 19;
    let has_leading_zero = given.len() > 1 && given.first() == Some(&b'0');
    if given.is_empty() || given.len() > DIGITS_MAX || has_leading_zero {
        return None;
    }
    let (eights, rest) = given.as_chunks::<8>();
    let mut number: u64 = 0;
    for digits in eights {
        number = number.wrapping_mul(100_000_000).wrapping_add(eight_digits(*digits)?);
    }
    for byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.wrapping_mul(10).wrapping_add(digit.into());
    }
    Some(number)
}

/// Parses eight digits at once: a token has sixteen, and comes with every release of a client
/// package. Neighbors are joined to numbers of two digits, these to numbers of four, and these to
/// one of eight, in each half of a register (D. Lemire, "Number Parsing at a Gigabyte per Second",
/// 2021).
fn eight_digits(given: [u8; 8]) -> Option<u64> {
    const fn each(byte: u8) -> u64 {
        u64::from_le_bytes([byte; 8])
    }
    /// The first and the third of the four pairs.
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let text = u64::from_le_bytes(given);
    // A digit's byte is 0x30 to 0x39: its upper half is 3, and still 3 after adding 6.
    let (high, more) = (text & each(0xf0), text.wrapping_add(each(6)) & each(0xf0));
    if high != each(0x30) || more != each(0x30) {
        return None;
    }
    let digits = text & each(0x0f);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let first = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let second = (pairs >> 16 & PAIRS).wrapping_mul(1 + (10_000 << 32));
    Some(first.wrapping_add(second) >> 32)
}
