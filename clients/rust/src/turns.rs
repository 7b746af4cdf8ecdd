//! Receives, over one subscription per server, whose ticket has its turn. That is a hint; polling goes on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::timed_out;
use crate::machine;
use crate::node::{Node, for_all};
use crate::servers::{Servers, lock};

type Who = Arc<Mutex<HashMap<Vec<u8>, Arc<Notify>>>>;

#[derive(Default)]
pub(crate) struct Turns {
    subscriptions: Mutex<HashMap<String, Subscription>>,
    who: Who,
}

struct Subscription {
    connection: MultiplexedConnection,
    is_over: Arc<AtomicBool>,
    channels: Vec<String>,
    /// Requests under way. They end with the subscription, and so does its connection.
    requests: JoinSet<()>,
}

impl Subscription {
    /// Asks in the background. A connection that does not answer is used no more.
    fn ask(
        &mut self,
        request: impl Future<Output = RedisResult<()>> + Send + 'static,
    ) -> oneshot::Receiver<()> {
        while self.requests.try_join_next().is_some() {}
        let (tell, told) = oneshot::channel();
        let is_over = self.is_over.clone();
        self.requests.spawn(async move {
            if timeout(Duration::from_millis(machine::REPLY), request).await.is_err() {
                is_over.store(true, Ordering::Relaxed);
            }
            let _ = tell.send(()); // who gave up meanwhile needs no answer
        });
        told
    }
}

impl Turns {
    /// From now on reports the turns of `owner`.
    pub(crate) fn listen(&self, channel: &str) -> Arc<Notify> {
        lock(&self.who).entry(channel.as_bytes().to_vec()).or_default().clone()
    }

    /// Subscribes at the primary of `key`. If that fails, polling has to do.
    pub(crate) async fn subscribe(
        self: &Arc<Turns>,
        servers: &Arc<Servers>,
        key: &[u8],
        channel: &str,
    ) {
        let Ok(node) = servers.locate(key).await else { return };
        if self.connected(&node).await.is_err() {
            return;
        }
        let subscribed = {
            let mut all = lock(&self.subscriptions);
            let Some(here) = all.get_mut(&node.name) else { return };
            if here.channels.iter().any(|known| known == channel) {
                return;
            }
            here.channels.push(channel.to_owned());
            let (mut connection, channel) = (here.connection.clone(), channel.to_owned());
            here.ask(async move { connection.subscribe(channel).await })
        };
        let _ = subscribed.await; // others need not wait for it
    }

    /// Sees to it that there is a subscription at that server.
    async fn connected(self: &Arc<Turns>, node: &Arc<Node>) -> RedisResult<()> {
        let one = node.subscribing.clone().lock_owned().await;
        {
            let mut all = lock(&self.subscriptions);
            all.retain(|_, old| !old.is_over.load(Ordering::Relaxed));
            if all.contains_key(&node.name) {
                return Ok(());
            }
        }
        let (turns, node) = (self.clone(), node.clone());
        for_all(async move {
            let _one = one;
            turns.connect(&node).await
        })
        .await
    }

    async fn connect(&self, node: &Node) -> RedisResult<()> {
        let (is_over, who) = (Arc::new(AtomicBool::new(false)), self.who.clone());
        let over = is_over.clone();
        let tell = move |info: PushInfo| match (info.kind, info.data.as_slice()) {
            (PushKind::Message, [Value::BulkString(channel), ..]) => {
                if let Some(turn) = lock(&who).get(channel) {
                    turn.notify_one();
                }
            }
            (PushKind::Disconnection, _) => over.store(true, Ordering::Relaxed),
            _ => {}
        };
        let connection = node.connect(tell).await?;
        let new =
            Subscription { connection, is_over, channels: Vec::new(), requests: JoinSet::new() };
        let mut all = lock(&self.subscriptions);
        if node.is_closed() {
            return Err(timed_out());
        }
        all.insert(node.name.clone(), new);
        Ok(())
    }

    /// Nobody is told of turns any more. To be called when servers are closed.
    pub(crate) fn close(&self) {
        lock(&self.subscriptions).clear();
    }

    /// The owner no longer waits.
    pub(crate) fn hush(&self, channel: &str) {
        lock(&self.who).remove(channel.as_bytes());
        for here in lock(&self.subscriptions).values_mut() {
            if let Some(at) = here.channels.iter().position(|known| known == channel) {
                here.channels.swap_remove(at);
                let mut connection = here.connection.clone();
                let channel = channel.to_owned();
                drop(here.ask(async move { connection.unsubscribe(channel).await }));
            }
        }
    }
}
