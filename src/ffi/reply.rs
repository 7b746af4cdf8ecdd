//! Replies in the server's protocol.

use rlock_engine::reply::Replies;

use super::*;

impl Replies for Ctx {
    fn reply_integer(&self, value: i64) {
        raw::reply_with_long_long(self.0, value);
    }

    fn reply_null(&self) {
        raw::reply_with_null(self.0);
    }

    fn reply_waiting(&self) {
        // SAFETY: context; the text is static.
        unsafe { there(raw::RedisModule_ReplyWithSimpleString)(self.0, c"WAITING".as_ptr()) };
    }

    fn reply_ok(&self) {
        raw::reply_with_simple_string(self.0, c"OK".as_ptr());
    }

    fn reply_error(&self, line: &str) {
        raw::reply_with_error(self.0, c_string(line).as_ptr());
    }

    fn reply_bytes(&self, bytes: &[u8]) {
        raw::reply_with_string_buffer(self.0, bytes.as_ptr().cast(), bytes.len());
    }

    fn reply_array(&self, len: usize) {
        raw::reply_with_array(self.0, len.cast_signed() as libc::c_long);
    }
}

impl Ctx {
    /// Begins a map of this many pairs of replies; an array for RESP2 clients.
    pub fn reply_map(&self, len: usize) {
        raw::reply_with_map(self.0, len.cast_signed() as libc::c_long);
    }
}
