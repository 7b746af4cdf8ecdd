//! Names in error texts and logs: one printable line, whatever bytes a name has.

use std::fmt::Write;

/// Longer names are cut, so that an error fits one line.
pub const NAME_BYTES_MAX: usize = 64;

/// A name between quotes for an error text: cut to [`NAME_BYTES_MAX`] bytes, then escaped.
pub fn quoted(name: &[u8]) -> String {
    format!("'{}'", escaped(cut(name)))
}

/// The first [`NAME_BYTES_MAX`] bytes of a name.
pub fn cut(name: &[u8]) -> &[u8] {
    name.get(..NAME_BYTES_MAX).unwrap_or(name)
}

/// Leaves printable ASCII as it is, writes a backslash as `\x5c`, and every other byte as `\xhh`.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\x5c"),
            b' '..=b'~' => text.push(byte.into()),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text
}
