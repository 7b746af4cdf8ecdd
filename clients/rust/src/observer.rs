//! Who holds a lock, as `RLOCK.AWAIT` tells it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::Inner;
use crate::ask::{is_true, millis};
use crate::entry::Entry;
use crate::error::{broken, is_passing, needs_tell, timed_out};
use crate::held::{Held, is_over};
use crate::machine::{Ms, REPLY};
use crate::node::Node;
use crate::servers::{Servers, lock};

/// A hold that ends sooner is not observed: most do.
const OLD_ENOUGH: Duration = Duration::from_millis(100);
const REPLIES: Duration = Duration::from_millis(REPLY);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Who holds WRITE of `key`: an array of the token and the owner, once the token is not that one; nil after `wait`
/// milliseconds. An error also if the subscription has ended meanwhile.
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

/// From now on a loss is known as soon as the server knows it. Who reads a lock, or has a permit, is not observed: nor is
/// who holds several.
pub(crate) fn observe(runtime: &Handle, inner: &Arc<Inner>, entry: &Arc<Entry>, held: &Arc<Held>) {
    let is_alone = !held.options.is_read && held.options.parts.is_none();
    if is_alone && !held.is_observed.swap(true, Ordering::AcqRel) {
        runtime.spawn(observed(inner.clone(), entry.clone(), held.clone()));
    }
}

async fn observed(inner: Arc<Inner>, entry: Arc<Entry>, held: Arc<Held>) {
    let (mut state, mut closed) = (held.state.subscribe(), inner.closing.signal());
    let is_lost = tokio::select! {
        biased;
        () = is_over(&mut state) => false,
        () = is_true(&mut closed) => false,
        is_lost = ends(&inner, &entry.key, &held) => is_lost,
    };
    if is_lost && !held.is_releasing.load(Ordering::Acquire) {
        held.lose();
        drop(lock(&held.line).take()); // what may still be tied to it ends with it
    }
}

/// Whether somebody else holds it, or nobody; false if that cannot be observed.
async fn ends(inner: &Arc<Inner>, key: &[u8], held: &Held) -> bool {
    sleep(OLD_ENOUGH).await;
    let mut pause = Duration::from_millis(10);
    loop {
        let lease = millis(held.options.lease);
        match other_than(inner, key, held.token, lease).await {
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
