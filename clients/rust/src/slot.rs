//! Which slot of a Cluster a key belongs to.

use std::sync::OnceLock;

/// The slot of a key in a Cluster: CRC16 (XMODEM) of its hash tag, modulo 16384.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|&byte| byte == b'}').filter(|&close| close > 0)?;
        rest.get(..close)
    });
    let mut crc: u16 = 0;
    for &byte in tag.unwrap_or(key) {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % 16384
}

/// The smallest number whose text is in that slot.
pub(crate) fn tag(slot: u16) -> u32 {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let (mut tags, mut missing) = (vec![u32::MAX; 16384], 16384);
        for number in 0.. {
            let place = tags.get_mut(usize::from(self::slot(number.to_string().as_bytes())));
            if let Some(tag) = place.filter(|tag| **tag == u32::MAX) {
                (*tag, missing) = (number, missing - 1);
            }
            if missing == 0 {
                break;
            }
        }
        tags
    });
    tags.get(usize::from(slot)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{slot, tag};

    #[test]
    fn each_slot_has_the_smallest_number_in_it() {
        for wanted in 0..16384 {
            assert_eq!(slot(format!("a{{{}}}b", tag(wanted)).as_bytes()), wanted);
        }
        let first =
            (0..1000).find(|number: &u32| slot(number.to_string().as_bytes()) == slot(b"7"));
        assert_eq!(Some(tag(slot(b"7"))), first);
    }

    #[test]
    fn slots_are_those_of_the_server() {
        // As `CLUSTER KEYSLOT` says.
        assert_eq!(slot(b"123456789"), 12739);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"a{foo}b"), 12182);
        assert_eq!(slot(b"{}foo"), slot(b"{}foo"));
        assert_ne!(slot(b"{}foo"), slot(b""));
    }
}
