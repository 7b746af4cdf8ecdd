//! The runner of this crate for the script that tests all client packages: `conformance async` or `conformance sync`. It
//! reads commands from standard input, one JSON object per line, and decides nothing.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "it ends, and the driver says so"
)]

mod bench;
mod locks;
mod once;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rlock_client::{Error, One};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use locks::{Client, Held, Lock};

/// One line from the driver.
#[derive(Deserialize, Default, Clone)]
#[serde(default)]
struct Order {
    id: u64,
    r#as: Option<String>,
    r#do: String,
    client: String,
    kind: String,
    addresses: Vec<String>,
    service: String,
    user: Option<String>,
    password: Option<String>,
    lock: String,
    key: String,
    mode: String,
    lease: Option<u64>,
    limit: Option<u32>,
    maxqueue: Option<u32>,
    acks: Option<u32>,
    session: bool,
    upgrade: bool,
    owner: Option<String>,
    hold: String,
    wait: Option<f64>,
    within: u64,
    of: u64,
    users: usize,
    times: usize,
    counter: String,
    ms: u64,
    tls: bool,
    every: u64,
    takes: u64,
    timeout: u64,
    outage: Option<u64>,
    each: Vec<String>,
    fails: bool,
    #[serde(rename = "ifItFails")]
    if_it_fails: String,
    keys: Vec<(String, Value)>,
    #[serde(deserialize_with = "or_empty")]
    name: String,
    observer: String,
}

/// Nobody has no name.
fn or_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Order {
    fn ones(&self) -> Vec<One> {
        let one = |(key, how): &(String, Value)| match how.as_u64() {
            Some(most) => rlock_client::limit(key, u32::try_from(most).unwrap()),
            None if how == "read" => rlock_client::read(key),
            None => One::from(key),
        };
        self.keys.iter().map(one).collect()
    }
}

/// The latest leader that an observer got (`None` before the first one), and when it came.
type Told = watch::Receiver<(Option<String>, u64)>;

/// What the script names.
#[derive(Default)]
struct Names {
    clients: HashMap<String, Client>,
    locks: HashMap<String, Lock>,
    holds: HashMap<String, Arc<Held>>,
    cancels: HashMap<u64, AbortHandle>,
    told: HashMap<String, Told>,
}

struct Runner {
    is_sync: bool,
    names: Mutex<Names>,
}

fn main() {
    // A thread for each actor that blocks.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(4000)
        .build()
        .unwrap();
    runtime.block_on(runs());
}

async fn runs() {
    let is_sync = std::env::args().nth(1).as_deref() == Some("sync");
    let mut features =
        vec!["close", "sentinel", "cluster", "session", "acks", "limit", "maxqueue", "several"];
    if !is_sync {
        features.extend(["cancel", "cancel-many", "loop"]);
    }
    if cfg!(feature = "tls") {
        features.push("tls");
    }
    say(&json!({"hello": if is_sync { "rust-sync" } else { "rust" }, "features": features}));
    let runner = Arc::new(Runner { is_sync, names: Mutex::default() });
    let (read, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if read.send(serde_json::from_str::<Order>(&line.unwrap()).unwrap()).is_err() {
                return;
            }
        }
    });
    let mut actors: HashMap<String, mpsc::UnboundedSender<Order>> = HashMap::new();
    while let Some(order) = lines.recv().await {
        match &order.r#as {
            None if matches!(
                order.r#do.as_str(),
                "lost" | "churn" | "bench" | "close" | "observed" | "block"
            ) =>
            {
                tokio::spawn(runner.clone().answer(order));
            }
            None => runner.clone().answer(order).await,
            Some(name) => {
                let actor = actors.entry(name.clone()).or_insert_with(|| {
                    let (give, mut work) = mpsc::unbounded_channel::<Order>();
                    let runner = runner.clone();
                    tokio::spawn(async move {
                        while let Some(order) = work.recv().await {
                            runner.clone().answer(order).await;
                        }
                    });
                    give
                });
                actor.send(order).unwrap();
            }
        }
    }
    std::process::exit(0);
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

fn name(error: &Error) -> &'static str {
    match error {
        Error::Deadlock(_) => "Deadlock",
        Error::TooMany(_) => "TooMany",
        Error::NoAcks(_) => "NoAcks",
        Error::NoReplicas(_) => "NoReplicas",
        Error::NoPerm(_) => "NoPerm",
        Error::Lost => "Lost",
        Error::Unavailable(_) => "Unavailable",
        Error::Closed => "Closed",
        _ => "Other",
    }
}

impl Runner {
    async fn answer(self: Arc<Runner>, order: Order) {
        let id = order.id;
        let mut reply = match self.clone().act(order).await {
            Ok(reply) => reply,
            Err(error) => json!({"error": name(&error), "text": error.to_string()}),
        };
        reply["id"] = id.into();
        say(&reply);
    }

    fn held(&self, order: &Order) -> Arc<Held> {
        self.names.lock().unwrap().holds[&order.hold].clone()
    }

    async fn act(self: Arc<Runner>, order: Order) -> Result<Value, Error> {
        let ok = Ok(json!({"ok": true}));
        match order.r#do.as_str() {
            "open" => {
                let client = Client::open(self.is_sync, &order)?;
                self.names.lock().unwrap().clients.insert(order.client, client);
                ok
            }
            "close" => {
                let client = self.names.lock().unwrap().clients.remove(&order.client);
                if let Some(client) = client {
                    client.close().await;
                }
                ok
            }
            "drain" => {
                let client = self.names.lock().unwrap().clients[&order.client].clone();
                Ok(json!({"left": client.drain(Duration::from_millis(order.timeout)).await}))
            }
            "all" => {
                let mut names = self.names.lock().unwrap();
                let client = names.clients[&order.client].clone();
                let lock = Lock { client, order };
                if let Err(error) = lock.check() {
                    return Ok(json!({"error": "Invalid", "text": error.to_string()}));
                }
                names.locks.insert(lock.order.lock.clone(), lock);
                ok
            }
            "observe" => {
                let mut names = self.names.lock().unwrap();
                let (tell, told) = watch::channel((None, 0));
                names.locks[&order.lock].observe(tell);
                names.told.insert(order.observer, told);
                ok
            }
            "observed" => {
                let mut told = self.names.lock().unwrap().told[&order.observer].clone();
                let wanted = told.wait_for(|(name, _)| name.as_ref() == Some(&order.name));
                match tokio::time::timeout(Duration::from_millis(order.within), wanted).await {
                    Ok(Ok(said)) => Ok(json!({"ok": true, "at": said.1})),
                    _ => Ok(json!({"ok": false})),
                }
            }
            "lock" | "any" | "election" => {
                let mut names = self.names.lock().unwrap();
                let client = names.clients[&order.client].clone();
                names.locks.insert(order.lock.clone(), Lock { client, order });
                ok
            }
            "acquire" => self.acquire(order).await,
            "check" => {
                let client = self.names.lock().unwrap().clients[&order.client].clone();
                client.check(order.key).await?;
                ok
            }
            "once" => {
                let client = self.names.lock().unwrap().clients[&order.client].clone();
                once::once(client, order).await
            }
            "release" => match self.held(&order).take() {
                None => Ok(json!({"error": "NotHeld", "text": "released before"})),
                Some(hold) => {
                    hold.release().await?;
                    ok
                }
            },
            "state" => {
                let left = self.held(&order).left();
                Ok(
                    json!({"held": left > Duration::ZERO, "left": u64::try_from(left.as_millis()).unwrap()}),
                )
            }
            "lost" => {
                let lost = self.held(&order);
                match tokio::time::timeout(Duration::from_millis(order.within), lost.lost_at())
                    .await
                {
                    Ok(at) => Ok(json!({"ok": true, "at": at})),
                    Err(_) => Ok(json!({"ok": false})),
                }
            }
            "cancel" => {
                if let Some(task) = self.names.lock().unwrap().cancels.get(&order.of) {
                    task.abort();
                }
                ok
            }
            "spawn" => {
                let child = std::process::Command::new("sleep").arg("20").spawn();
                drop(child.unwrap());
                ok
            }
            "block" => {
                // Each thread of the runtime.
                let threads = std::thread::available_parallelism().map_or(2, usize::from);
                for _ in 0..order.times {
                    let time = Duration::from_millis(order.ms);
                    let all: Vec<_> = (0..threads)
                        .map(|_| tokio::spawn(async move { std::thread::sleep(time) }))
                        .collect();
                    for each in all {
                        each.await.unwrap();
                    }
                }
                ok
            }
            "churn" => {
                let lock = self.names.lock().unwrap().locks[&order.lock].clone();
                bench::churn(lock, order).await
            }
            "bench" => {
                let client = self.names.lock().unwrap().clients[&order.client].clone();
                bench::bench(client, order).await
            }
            other => Ok(json!({"error": "Other", "text": format!("{other} is not known")})),
        }
    }

    async fn acquire(self: Arc<Runner>, order: Order) -> Result<Value, Error> {
        let lock = self.names.lock().unwrap().locks[&order.lock].clone();
        let wait = order.wait;
        let task = tokio::spawn(async move { lock.acquire(wait).await });
        self.names.lock().unwrap().cancels.insert(order.id, task.abort_handle());
        let outcome = task.await;
        self.names.lock().unwrap().cancels.remove(&order.id); // it keeps the memory of the task
        match outcome {
            Err(_) => Ok(json!({"error": "Cancelled", "text": "its future was dropped"})),
            Ok(Err(Error::NotAcquired)) => Ok(json!({"ok": false})),
            Ok(Err(error)) => Err(error),
            Ok(Ok(hold)) => {
                let reply = json!({
                    "ok": true, "token": hold.token(), "owner": hold.owner(), "key": hold.key(),
                });
                self.names.lock().unwrap().holds.insert(order.hold, Held::new(hold));
                Ok(reply)
            }
        }
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}
