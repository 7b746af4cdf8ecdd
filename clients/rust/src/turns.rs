//! Receives, over one subscription per server, whose ticket has its turn. That is a hint; polling goes on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

use crate::servers::{Servers, lock};

type Who = Arc<Mutex<HashMap<Vec<u8>, Arc<Notify>>>>;

#[derive(Default)]
pub(crate) struct Turns {
    subscriptions: tokio::sync::Mutex<HashMap<String, Subscription>>,
    who: Who,
}

struct Subscription {
    connection: MultiplexedConnection,
    is_over: Arc<AtomicBool>,
    channels: Vec<String>,
}

impl Turns {
    /// From now on reports the turns of `owner`.
    pub(crate) fn listen(&self, channel: &str) -> Arc<Notify> {
        lock(&self.who).entry(channel.as_bytes().to_vec()).or_default().clone()
    }

    /// Subscribes at the primary of `key`. If that fails, polling has to do.
    pub(crate) async fn subscribe(&self, servers: &Servers, key: &[u8], channel: &str) {
        let Ok(node) = servers.locate(key).await else { return };
        let mut all = self.subscriptions.lock().await;
        all.retain(|_, old| !old.is_over.load(Ordering::Relaxed));
        if !all.contains_key(&node.name) {
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
            let Ok(connection) = node.connect(tell).await else { return };
            all.insert(
                node.name.clone(),
                Subscription { connection, is_over, channels: Vec::new() },
            );
        }
        if let Some(here) = all.get_mut(&node.name)
            && !here.channels.iter().any(|known| known == channel)
            && here.connection.subscribe(channel).await.is_ok()
        {
            here.channels.push(channel.to_owned());
        }
    }

    /// Nobody is told of turns any more.
    pub(crate) async fn close(&self) {
        self.subscriptions.lock().await.clear();
    }

    /// The owner no longer waits.
    pub(crate) async fn hush(&self, channel: &str) {
        lock(&self.who).remove(channel.as_bytes());
        for here in self.subscriptions.lock().await.values_mut() {
            if let Some(at) = here.channels.iter().position(|known| known == channel) {
                here.channels.swap_remove(at);
                let mut connection = here.connection.clone();
                let channel = channel.to_owned();
                tokio::spawn(async move { connection.unsubscribe(channel).await });
            }
        }
    }
}
