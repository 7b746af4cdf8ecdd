//! Replies in the server's protocol.

use redis_module::raw;

use rlock_core::Reply;

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

/// Replies to `RLOCK.ACQUIRE`, at once or when a parked connection's wait is over.
pub fn to_acquire(ctx: &Ctx, reply: &Reply, with_ttl: bool, key: &[u8], owner: &[u8]) {
    if let Reply::Refused(refusal) = reply {
        return ctx.reply_error(&refusal.line(key, owner));
    }
    if with_ttl {
        ctx.reply_array(2);
    }
    let ms = match reply {
        Reply::Granted { token, left_ms } => {
            ctx.reply_integer(token.get().cast_signed());
            Some(*left_ms)
        }
        Reply::NotNow { wait_ms } | Reply::MustWait { wait_ms } => {
            ctx.reply_null();
            *wait_ms
        }
        Reply::Count(_) | Reply::Refused(_) => {
            ctx.reply_null();
            None
        }
    };
    if with_ttl {
        ctx.reply_integer(ms.map_or(-1, u64::cast_signed));
    }
}
