//! The reply to `RLOCK.ACQUIRE`.

use rlock_core::Reply;

use crate::ffi::Ctx;

/// Replies to `RLOCK.ACQUIRE`, at once or when a blocked connection's wait ends.
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
        // A renewal that was blocked.
        Reply::Count(count) => {
            ctx.reply_integer(count.cast_signed());
            None
        }
        Reply::Refused(_) | Reply::MustConfirm | Reply::Pending => {
            ctx.reply_null();
            None
        }
    };
    if with_ttl {
        ctx.reply_integer(ms.map_or(-1, u64::cast_signed));
    }
}
