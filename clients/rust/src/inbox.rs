//! Late replies: one subscription per server receives them for all waits, and recognizes each by
//! its ID.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock::now;
use crate::error::timed_out;
use crate::machine::{LOOKS, Ms, Planted, REPLY, is_condemned};
use crate::util::lock;

/// The subscription of one server.
#[derive(Default)]
pub(crate) struct Inbox {
    link: Mutex<Option<Link>>,
    /// One connection is opened at a time.
    pub(crate) connecting: Arc<tokio::sync::Mutex<()>>,
}

/// Its connection. Dropping it closes it, and ends everything that waits there.
pub(crate) struct Link {
    post: Arc<Post>,
    connection: MultiplexedConnection,
    requests: JoinSet<()>,
}

impl Link {
    /// Sends pings on the connection while somebody waits, and calls `forget` when it is silent.
    pub(crate) fn new(
        post: Arc<Post>,
        connection: MultiplexedConnection,
        forget: impl FnOnce(&Arc<Post>) + Send + 'static,
    ) -> Link {
        let mut link = Link { post: post.clone(), connection, requests: JoinSet::new() };
        let connection = link.connection.clone();
        link.requests.spawn(async move {
            post.pings(connection).await;
            forget(&post);
        });
        link
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.post.ends();
    }
}

/// The requests that wait for messages on one connection.
#[derive(Default)]
pub(crate) struct Post {
    is_over: AtomicBool,
    /// When it was last heard from.
    heard: AtomicU64,
    /// How many requests have no reply yet.
    under_way: AtomicUsize,
    mail: Mutex<Mail>,
    /// Somebody waits.
    waits: Notify,
}

/// The result of a subscription; `None` while it is in progress.
pub(crate) type State = Option<RedisResult<()>>;

#[derive(Default)]
struct Mail {
    /// The result of each subscription.
    channels: HashMap<Arc<str>, watch::Sender<State>>,
    letters: HashMap<u64, (Arc<str>, oneshot::Sender<RedisResult<Value>>)>,
}

/// A late reply that somebody waits for. It is kept until it is read.
pub(crate) struct Letter {
    pub(crate) id: u64,
    post: Arc<Post>,
    reply: oneshot::Receiver<RedisResult<Value>>,
}

impl Letter {
    /// The reply; `None` if the subscription has ended, so that no reply will come.
    pub(crate) async fn reply(&mut self) -> Option<RedisResult<Value>> {
        (&mut self.reply).await.ok()
    }

    /// `TELL channel id`
    pub(crate) fn add_to(&self, words: &mut Cmd, channel: &str) {
        words.arg("TELL").arg(channel).arg(format!("{:x}", self.id));
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        lock(&self.post.mail).letters.remove(&self.id);
    }
}

impl Post {
    /// Draws an id for one request. From now on, a message with that id is for the letter's owner.
    pub(crate) fn letter(self: &Arc<Post>, channel: &Arc<str>) -> Letter {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let (id, (tell, reply)) = (IDS.fetch_add(1, Ordering::Relaxed), oneshot::channel());
        let mut mail = lock(&self.mail);
        if mail.channels.contains_key(channel) {
            mail.letters.insert(id, (channel.clone(), tell));
            self.waits.notify_one();
        }
        Letter { id, post: self.clone(), reply }
    }

    pub(crate) fn hears(&self) {
        self.heard.store(now(), Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn ends(&self) {
        self.is_over.store(true, Ordering::Release);
        *lock(&self.mail) = Mail::default();
    }

    /// Handles a push from the server.
    pub(crate) fn receives(&self, info: &PushInfo) {
        self.hears();
        match (&info.kind, info.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(text)]) => {
                let Some((id, reply)) = read(text) else { return };
                let letter = lock(&self.mail).letters.remove(&id);
                letter.into_iter().for_each(|(_, tell)| drop(tell.send(reply.clone())));
            }
            // The slot has moved. The client library takes this push for the reply to a request in
            // progress.
            (PushKind::SUnsubscribe, _) if self.under_way.load(Ordering::Acquire) > 0 => {
                self.ends()
            }
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                let mut mail = lock(&self.mail);
                mail.channels.retain(|name, _| name.as_bytes() != channel);
                mail.letters.retain(|_, (name, _)| name.as_bytes() != channel);
            }
            (PushKind::Disconnection, _) => self.ends(),
            _ => {}
        }
    }

    /// Sends a request on this connection. `None` means silence.
    async fn ask(
        &self,
        work: impl Future<Output = RedisResult<Value>>,
    ) -> Option<RedisResult<Value>> {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let reply = timeout(Duration::from_millis(REPLY), work).await.ok()?;
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        self.hears();
        Some(reply)
    }

    async fn subscribe(&self, mut connection: MultiplexedConnection, name: Arc<str>, asking: bool) {
        let mut words = redis::pipe();
        if asking {
            words.cmd("ASKING");
        }
        words.cmd("SSUBSCRIBE").arg(&*name);
        let sent = words.len();
        let work = async {
            let replies = connection.send_packed_commands(&words, 0, sent).await?;
            replies.into_iter().map(Value::extract_error).last().unwrap_or_else(|| Err(timed_out()))
        };
        let reply = match self.ask(work).await {
            Some(reply) => reply.map(drop).map_err(needs_rights),
            None => return self.ends(),
        };
        let mut mail = lock(&self.mail);
        let Some(channel) = mail.channels.get(&name) else { return };
        let is_refused = reply.is_err();
        channel.send_replace(Some(reply));
        if is_refused {
            mail.channels.remove(&name);
        }
    }

    /// While somebody waits, checks whether the server still answers.
    async fn pings(&self, mut connection: MultiplexedConnection) {
        let is_idle = || lock(&self.mail).letters.is_empty();
        loop {
            if is_idle() {
                self.waits.notified().await;
            }
            sleep(Duration::from_millis(LOOKS)).await;
            let sent = now();
            let ping = redis::cmd("PING");
            let is_silent =
                !is_idle() && self.ask(connection.send_packed_command(&ping)).await.is_none();
            if is_silent && self.heard.load(Ordering::Relaxed) < sent {
                return self.ends();
            }
        }
    }
}

impl Inbox {
    /// Whether the channel is subscribed.
    pub(crate) fn hears(&self, channel: &str) -> bool {
        let link = lock(&self.link);
        let mail = link.as_ref().map(|link| lock(&link.post.mail));
        let state = mail.as_ref().and_then(|mail| mail.channels.get(channel));
        state.is_some_and(|state| matches!(*state.borrow(), Some(Ok(()))))
    }

    /// A request that was sent then has gone unanswered: messages on this connection may be missing
    /// as well.
    pub(crate) fn distrust(&self, sent: Ms) {
        let mut link = lock(&self.link);
        let heard = link.as_ref().map(|link| link.post.heard.load(Ordering::Relaxed));
        if heard.is_some_and(|heard| is_condemned(heard, sent, Planted::Nothing)) {
            *link = None;
        }
    }

    /// Replaces the connection.
    pub(crate) fn open(&self, link: Option<Link>) {
        *lock(&self.link) = link;
    }

    pub(crate) fn close(&self) {
        *lock(&self.link) = None;
    }
}

impl Inbox {
    /// Returns the state of the subscription, which is begun if there is a connection for it.
    pub(crate) fn subscribed(
        &self,
        channel: &Arc<str>,
        asking: bool,
    ) -> Option<(Arc<Post>, watch::Receiver<State>)> {
        let mut link = lock(&self.link);
        let Link { post, connection, requests } = link.as_mut()?;
        if post.is_over() {
            *link = None;
            return None;
        }
        let mut mail = lock(&post.mail);
        let known = mail.channels.get(channel).map(watch::Sender::subscribe);
        let state = known.unwrap_or_else(|| {
            let (tell, state) = watch::channel(None);
            mail.channels.insert(channel.clone(), tell);
            while requests.try_join_next().is_some() {}
            let (post, connection, name) = (post.clone(), connection.clone(), channel.clone());
            requests.spawn(async move { post.subscribe(connection, name, asking).await });
            state
        });
        drop(mail);
        Some((post.clone(), state))
    }

    pub(crate) fn forget(&self, post: &Arc<Post>) {
        let mut link = lock(&self.link);
        if link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.post, post)) {
            *link = None;
        }
    }
}

/// Parses `id SP outcome` as a reply.
fn read(text: &[u8]) -> Option<(u64, RedisResult<Value>)> {
    let mut words = text.splitn(3, |byte| *byte == b' ');
    let mut word = || words.next().and_then(|word| str::from_utf8(word).ok());
    let id = u64::from_str_radix(word()?, 16).ok()?;
    let kind = word()?;
    let rest = words.next().unwrap_or_default();
    let (first, more) = match rest.iter().position(|byte| *byte == b' ') {
        Some(at) => (rest.get(..at)?, rest.get(at + 1..)?),
        None => (rest, &b""[..]),
    };
    let first = String::from_utf8_lossy(first);
    let number = || first.parse().map(Value::Int).ok();
    let reply = match kind {
        "token" => Ok(number()?),
        "renewed" => Ok(Value::Int(1)),
        "nil" => Ok(Value::Nil),
        "holder" => {
            let owner = (first != "0").then(|| Value::BulkString(more.to_vec()));
            Ok(Value::Array(vec![number()?, owner.unwrap_or(Value::Nil)]))
        }
        // In the form in which it would come on a connection.
        "error" => {
            redis::parse_redis_value(&[b"-", rest, b"\r\n"].concat()).and_then(Value::extract_error)
        }
        _ => return None,
    };
    Some((id, reply))
}

fn needs_rights(error: redis::RedisError) -> redis::RedisError {
    if error.code() != Some("NOPERM") {
        return error;
    }
    let why = "who waits needs +ssubscribe and the channels &rlock:tell:*";
    let kind = redis::ErrorKind::Server(redis::ServerErrorKind::NoPerm);
    (kind, why, error.detail().unwrap_or_default().to_owned()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_replies() {
        let said = |text: &str| read(text.as_bytes()).map(|(id, reply)| (id, reply.ok()));
        let holder = |token, owner| Some(Value::Array(vec![Value::Int(token), owner]));
        assert_eq!(said("1f token 7 29000"), Some((31, Some(Value::Int(7)))));
        assert_eq!(said("1 renewed"), Some((1, Some(Value::Int(1)))));
        assert_eq!(said("1 nil -1"), Some((1, Some(Value::Nil))));
        assert_eq!(said("1 holder 0"), Some((1, holder(0, Value::Nil))));
        let owner = Value::BulkString(b"a b".to_vec());
        assert_eq!(said("1 holder 7 a b"), Some((1, holder(7, owner))));
        let error = read(b"2 error NOACKS too few").map(|(_, reply)| reply.err());
        let code = |error: &redis::RedisError| error.code().map(str::to_owned);
        assert_eq!(error.flatten().as_ref().and_then(code), Some("NOACKS".to_owned()));
        for other in ["", "x", "1", "1 other", "zz token 7 1", "1 token x 1"] {
            assert!(read(other.as_bytes()).is_none(), "{other}");
        }
    }
}
