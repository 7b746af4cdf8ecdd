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

/// Replies to `RLOCK.AWAIT` with the visible hold, or with 0 and nil.
pub fn to_await(host: &impl Replies, held: Option<&SeenHold>) {
    host.reply_array(2);
    host.reply_integer(held.map_or(0, |held| held.token.get().cast_signed()));
    match held {
        Some(held) => host.reply_bytes(held.owner.as_bytes()),
        None => host.reply_null(),
    }
}

/// The text of a message that is the late reply to a request; it begins with `id`.
pub fn message_of(id: &[u8], end: &WaitEnd, key: &[u8], owner: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(id.len().saturating_add(ROOM));
    message.extend_from_slice(id);
    match end {
        WaitEnd::Saw(Some(held)) => {
            add_number(&mut message, b" holder ", held.token.get());
            message.push(b' ');
            message.extend_from_slice(held.owner.as_bytes());
        }
        WaitEnd::Saw(None) => message.extend_from_slice(b" holder 0"),
        WaitEnd::Replied(Reply::Granted { token, remaining_ms }) => {
            add_number(&mut message, b" token ", token.get());
            add_number(&mut message, b" ", *remaining_ms);
        }
        WaitEnd::Replied(Reply::Renewed) => message.extend_from_slice(b" renewed"),
        WaitEnd::Replied(Reply::Refused(refusal)) => {
            message.extend_from_slice(b" error ");
            message.extend_from_slice(refusal.line(key, owner).as_bytes());
        }
        WaitEnd::Replied(
            Reply::NotNow { wait_ms: Some(ms) } | Reply::MustWait { wait_ms: Some(ms) },
        ) => add_number(&mut message, b" nil ", *ms),
        WaitEnd::Replied(_) | WaitEnd::Waits | WaitEnd::Departed => {
            message.extend_from_slice(b" nil -1");
        }
    }
    message
}

/// How many bytes most messages add to their `id`: a word and two numbers.
const ROOM: usize = 48;

/// Adds a word and the digits of a number: the standard formatter is too slow for a hand-off.
fn add_number(message: &mut Vec<u8>, word: &[u8], number: u64) {
    message.extend_from_slice(word);
    let mut digits = [0; 20];
    let (mut rest, mut count) = (number, 0_usize);
    for digit in digits.iter_mut().rev() {
        *digit = b'0'.saturating_add(u8::try_from(rest % 10).unwrap_or(0));
        (rest, count) = (rest / 10, count.saturating_add(1));
        if rest == 0 {
            break;
        }
    }
    message.extend(digits.iter().skip(digits.len().saturating_sub(count)));
}
