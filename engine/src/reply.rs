//! Replies to the caller.

use rlock_core::Reply;
use rlock_core::manager::{SeenHold, WaitEnd};

/// Replies to the caller, in the server's protocol.
pub trait Replies {
    /// Replies with an integer.
    fn reply_integer(&self, value: i64);
    /// Replies with nil.
    fn reply_null(&self);
    /// Replies with bytes.
    fn reply_bytes(&self, bytes: &[u8]);
    /// Replies with `+OK`.
    fn reply_ok(&self);
    /// Replies with `+WAITING`.
    fn reply_waiting(&self);
    /// Replies with an error line that begins with its code.
    fn reply_error(&self, line: &str);
    /// Begins an array of this many replies.
    fn reply_array(&self, len: usize);
}

/// Replies to `RLOCK.ACQUIRE` or `RLOCK.RENEW`, at once or when a blocked connection's wait ends.
pub fn to_acquire(host: &impl Replies, reply: &Reply, with_ttl: bool, key: &[u8], owner: &[u8]) {
    if let Reply::Refused(refusal) = reply {
        return host.reply_error(&refusal.line(key, owner));
    }
    if with_ttl {
        host.reply_array(2);
    }
    let ms = match reply {
        Reply::Granted { token, remaining_ms } => {
            host.reply_integer(token.get().cast_signed());
            Some(*remaining_ms)
        }
        Reply::NotNow { wait_ms } | Reply::MustWait { wait_ms } => {
            host.reply_null();
            *wait_ms
        }
        Reply::Renewed => {
            host.reply_integer(1);
            None
        }
        Reply::Count(_) | Reply::Refused(_) | Reply::MustConfirm | Reply::Pending => {
            host.reply_null();
            None
        }
    };
    if with_ttl {
        host.reply_integer(ms.map_or(-1, u64::cast_signed));
    }
}

/// Replies to `RLOCK.AWAIT` with the hold that is seen, or with 0 and nil.
pub fn to_await(host: &impl Replies, held: Option<&SeenHold>) {
    host.reply_array(2);
    host.reply_integer(held.map_or(0, |held| held.token.get().cast_signed()));
    match held {
        Some(held) => host.reply_bytes(held.owner.as_bytes()),
        None => host.reply_null(),
    }
}

/// What a message says that is the late reply to a request; `id` begins it.
pub fn message_of(id: &[u8], end: &WaitEnd, key: &[u8], owner: &[u8]) -> Vec<u8> {
    let nil = |ms: Option<u64>| format!("nil {}", ms.map_or(-1, u64::cast_signed));
    let said = match end {
        WaitEnd::Saw(Some(held)) => format!("holder {} ", held.token.get()),
        WaitEnd::Saw(None) => "holder 0".into(),
        WaitEnd::Replied(Reply::Granted { token, remaining_ms }) => {
            format!("token {} {remaining_ms}", token.get())
        }
        WaitEnd::Replied(Reply::Renewed) => "renewed".into(),
        WaitEnd::Replied(Reply::Refused(refusal)) => {
            format!("error {}", refusal.line(key, owner))
        }
        WaitEnd::Replied(Reply::NotNow { wait_ms } | Reply::MustWait { wait_ms }) => nil(*wait_ms),
        WaitEnd::Replied(_) | WaitEnd::Waits | WaitEnd::Departed => nil(None),
    };
    let seen = if let WaitEnd::Saw(Some(held)) = end { held.owner.as_bytes() } else { &[] };
    [id, b" ", said.as_bytes(), seen].concat()
}
