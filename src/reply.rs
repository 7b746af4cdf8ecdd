//! Replies in the server's protocol.

use redis_module::raw;

use crate::ffi::{Ctx, c_string};

impl Ctx {
    /// Replies with an integer.
    pub fn reply_integer(&self, value: i64) {
        raw::reply_with_long_long(self.raw(), value);
    }

    /// Replies with nil.
    pub fn reply_null(&self) {
        raw::reply_with_null(self.raw());
    }

    /// Replies with `+OK`.
    pub fn reply_ok(&self) {
        raw::reply_with_simple_string(self.raw(), c"OK".as_ptr());
    }

    /// Replies with an error line that begins with its code.
    pub fn reply_error(&self, line: &str) {
        raw::reply_with_error(self.raw(), c_string(line).as_ptr());
    }

    /// Replies with a byte string.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        raw::reply_with_string_buffer(self.raw(), bytes.as_ptr().cast(), bytes.len());
    }

    /// Begins an array of so many replies.
    pub fn reply_array(&self, len: usize) {
        raw::reply_with_array(self.raw(), len.cast_signed() as libc::c_long);
    }

    /// Begins a map of so many pairs of replies; an array for clients that speak RESP2.
    pub fn reply_map(&self, len: usize) {
        raw::reply_with_map(self.raw(), len.cast_signed() as libc::c_long);
    }
}
