//! Observes who holds a lock, with `RLOCK.AWAIT`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::Inner;
use crate::error::{broken, is_passing, needs_tell, timed_out};
use crate::machine::{Ms, REPLY};
use crate::node::Node;
use crate::seat::Seat;
use crate::servers::Servers;
use crate::tenure::{Tenure, ended};
use crate::util::{is_true, lock, millis};

/// Younger holds are not observed, since most of them end sooner.
const OLD_ENOUGH: Duration = Duration::from_millis(100);
const REPLIES: Duration = Duration::from_millis(REPLY);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Waits until WRITE of `key` is no longer held with that token, and returns the token and the
/// owner of the new hold; nil after `wait` milliseconds. The end of the subscription is an error.
pub(crate) async fn other_than(
    inner: &Arc<Inner>,
    key: &[u8],
    token: u64,
    wait: Ms,
) -> RedisResult<Value> {
    let servers = &inner.servers;
    let (mut there, mut hops) = (None, 0);
    loop {
        let (node, asking) = match there.take() {
            Some(there) => there,
            None => {
                let located = timeout(REPLIES, servers.locate(key)).await;
                (located.unwrap_or_else(|_| Err(timed_out()))?, false)
            }
        };
        match ask(servers, &node, asking, key, token, wait).await {
            Err(error) if hops < 4 => {
                there = servers.redirection(&node, &error);
                if there.is_none() {
                    return Err(error);
                }
                hops += 1;
            }
            reply => return reply,
        }
    }
}

async fn ask(
    servers: &Arc<Servers>,
    node: &Arc<Node>,
    asking: bool,
    key: &[u8],
    token: u64,
    wait: Ms,
) -> RedisResult<Value> {
    let (channel, until) = (servers.channel(key), Instant::now() + REPLIES);
    let refused = |error: &RedisError| servers.refused(node, error);
    let listening = timeout_at(until, node.listen(&channel, asking)).await;
    let post = listening.unwrap_or_else(|_| Err(timed_out())).inspect_err(refused)?;
    let mut letter = post.letter(&channel);
    let mut words = redis::cmd("RLOCK.AWAIT");
    words.arg(key).arg(token).arg("BLOCK").arg(wait);
    letter.add_to(&mut words, &channel);
    match servers.ask_at(node, asking, key, &words, until).await.map_err(needs_tell)? {
        Value::SimpleString(_) => {
            let late = Duration::from_millis(wait.saturating_add(REPLY / 4));
            let reply = timeout(late, letter.reply()).await.map_err(|_| timed_out())?;
            reply.unwrap_or_else(|| Err(broken())).inspect_err(refused)
        }
        reply => Ok(reply),
    }
}

/// Observes the hold, so that a loss is reported as soon as the server notices it. `RLOCK.AWAIT`
/// observes only a single write lock: read locks, permits and groups are not observed.
pub(crate) fn observe(
    runtime: &Handle,
    inner: &Arc<Inner>,
    seat: &Arc<Seat>,
    tenure: &Arc<Tenure>,
) {
    let is_alone = !tenure.options.is_read && tenure.options.parts.is_none();
    if is_alone && !tenure.is_observed.swap(true, Ordering::AcqRel) {
        runtime.spawn(observed(inner.clone(), seat.clone(), tenure.clone()));
    }
}

async fn observed(inner: Arc<Inner>, seat: Arc<Seat>, tenure: Arc<Tenure>) {
    let (mut state, mut closed) = (tenure.state.subscribe(), inner.closing.signal());
    let is_lost = tokio::select! {
        biased;
        () = ended(&mut state) => false,
        () = is_true(&mut closed) => false,
        is_lost = ends(&inner, &seat.key, &tenure) => is_lost,
    };
    if is_lost && !tenure.is_releasing.load(Ordering::Acquire) {
        tenure.lose();
        drop(lock(&tenure.line).take()); // what may still be tied to the connection ends with it
    }
}

/// Waits until the lock is free or held by another owner; false if that cannot be observed.
async fn ends(inner: &Arc<Inner>, key: &[u8], tenure: &Tenure) -> bool {
    sleep(OLD_ENOUGH).await;
    let mut pause = Duration::from_millis(10);
    loop {
        let lease = millis(tenure.options.lease);
        match other_than(inner, key, tenure.token, lease).await {
            Ok(Value::Nil) => pause = Duration::from_millis(10),
            Ok(_) => return true,
            Err(error) if is_passing(&error) => {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(_) => return false,
        }
    }
}
