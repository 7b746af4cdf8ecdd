//! What the caller of `RLOCK.ACQUIRE` is told.

use rlock_core::Reply;

use crate::ffi::Ctx;

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
