//! Slots, as a Cluster computes them: a command can open only keys of its own slot.

/// The slot of a key or of a channel.
pub(crate) fn of(name: &[u8]) -> u16 {
    crc16(hashed(name)) & 0x3fff
}

/// The part of this name that decides its slot: its hash tag without the braces, or all of it.
pub(crate) fn hashed(name: &[u8]) -> &[u8] {
    let open = name.iter().position(|byte| *byte == b'{').map(|at| at.saturating_add(1));
    let inside = open.and_then(|from| name.get(from..));
    let close = inside.and_then(|rest| rest.iter().position(|byte| *byte == b'}'));
    let tag = inside.zip(close).and_then(|(rest, len)| rest.get(..len));
    tag.filter(|tag| !tag.is_empty()).unwrap_or(name)
}

/// CRC-16 of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 { shifted } else { shifted ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(of(b"123456789"), 0x31c3);
        assert_eq!(of(b"{order:42}:7f3a"), of(b"order:42"));
        assert_eq!(of(b"a{}b{c}"), of(b"a{}b{c}"));
        assert_ne!(of(b"{}order:42"), of(b"order:42"));
    }
}
