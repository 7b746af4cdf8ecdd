//! One run in each interval.

use std::time::Duration;

use rlock_client::{Error, IfItFails};
use serde_json::{Value, json};

use crate::Order;
use crate::locks::{Client, Locker};

/// Why a run ended.
enum Failed {
    Work,
    Lock(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Lock(error)
    }
}

macro_rules! once {
    ($locker:expr, $order:expr) => {{
        let mut once = $locker.once(&$order.key, Duration::from_millis($order.every));
        if $order.if_it_fails == "again" {
            once = once.if_it_fails(IfItFails::Again);
        }
        if let Some(lease) = $order.lease {
            once = once.lease(Duration::from_millis(lease));
        }
        if let Some(acks) = $order.acks {
            once = once.acks(acks);
        }
        once
    }};
}

pub async fn once(client: Client, order: Order) -> Result<Value, Error> {
    let takes = Duration::from_millis(order.takes);
    let outcome = if order.fails { Err(Failed::Work) } else { Ok(()) };
    let ran = match client.locker {
        Locker::Async(locker) => {
            let work = |_, _| async move {
                tokio::time::sleep(takes).await;
                outcome
            };
            once!(locker, order).run(work).await
        }
        Locker::Sync(locker) => {
            let work = move |_, _| {
                std::thread::sleep(takes);
                outcome
            };
            tokio::task::spawn_blocking(move || once!(locker, order).run(work)).await.unwrap()
        }
    };
    match ran {
        Ok(ran) => Ok(json!({"ok": ran.is_some()})),
        Err(Failed::Work) => Ok(json!({"ok": true, "failed": true})),
        Err(Failed::Lock(error)) => Err(error),
    }
}
