//! Finds the primary of a key: the one server, through Sentinel, or in a Cluster. All connections belong to the crate.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError,
    RedisResult, ServerErrorKind, Value,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::now;
use crate::error::{is_broken, is_no_primary, is_passing, timed_out, unreached};
use crate::machine::{self, Dial};
use crate::node::Node;
use crate::slot::{slot, tag};
use crate::space::join;
use crate::util::{PATIENCE, for_all, is_true, lock, random};

pub(crate) enum Topology {
    One,
    Sentinel { sentinels: Vec<ConnectionInfo>, master: String },
    Cluster { seeds: Vec<ConnectionInfo> },
}

pub(crate) struct Servers {
    topology: Topology,
    /// What all nodes have in common: user, password, database, TLS.
    template: ConnectionInfo,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    closed: watch::Sender<bool>,
    known: Mutex<Known>,
    /// One task searches for the primaries; the others wait for its result.
    looking: Arc<tokio::sync::Mutex<()>>,
    /// The index of the node or Sentinel that is asked first.
    next: AtomicUsize,
    /// The space in which owners with user-chosen names are counted, once the server has identified itself.
    pub(crate) space: OnceLock<String>,
    /// Whether the address may lead to another server by now.
    is_new: AtomicBool,
    /// When the only server first reported that it is a replica; [`machine::FOREVER`] if it has served as a primary.
    replica_since: AtomicU64,
    /// Distinguishes the channels of this client.
    image: String,
    /// Channels have slots.
    is_sharded: AtomicBool,
}

#[derive(Default)]
struct Known {
    primary: Option<Arc<Node>>,
    /// First and last slot, and the server that serves them.
    slots: Vec<(u16, u16, Arc<Node>)>,
    /// Something has failed since the last search, so the servers must be looked up again.
    is_doubted: bool,
    /// When to search for the servers again, and why the last search failed.
    searches: machine::Server,
    trouble: Option<RedisError>,
}

impl Servers {
    pub(crate) fn new(topology: Topology, template: ConnectionInfo) -> Servers {
        let is_sharded = AtomicBool::new(matches!(topology, Topology::Cluster { .. }));
        let redis = template.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        Servers {
            topology,
            template: template.set_redis_settings(redis),
            nodes: Mutex::default(),
            closed: watch::Sender::new(false),
            known: Mutex::default(),
            looking: Arc::default(),
            next: AtomicUsize::new(0),
            space: OnceLock::new(),
            is_new: AtomicBool::new(false),
            replica_since: AtomicU64::new(0),
            image: format!("{:016x}", RandomState::new().build_hasher().finish()),
            is_sharded,
        }
    }

    /// A request was decided, which only a primary does.
    pub(crate) fn served(&self) {
        if self.replica_since.load(Ordering::Relaxed) != machine::FOREVER {
            self.replica_since.store(machine::FOREVER, Ordering::Relaxed);
        }
    }

    /// Whether the address leads to a permanent replica. During a failover, a primary is a replica
    /// only for a while; Sentinels and Clusters then name another server.
    pub(crate) fn is_replica(&self) -> bool {
        if !matches!(self.topology, Topology::One) {
            return false;
        }
        let (first, now) = (Ordering::Relaxed, now().max(1));
        let since =
            self.replica_since.compare_exchange(0, now, first, first).unwrap_or_else(|since| since);
        since > 0 && now.saturating_sub(since) >= machine::PATIENCE
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster { .. })
    }

    /// A name for servers that do not identify themselves.
    pub(crate) fn identity(&self) -> String {
        let mut all = match &self.topology {
            Topology::One => vec![self.template.addr().to_string()],
            Topology::Sentinel { sentinels, master } => {
                sentinels.iter().map(|s| s.addr().to_string()).chain([master.clone()]).collect()
            }
            Topology::Cluster { seeds } => seeds.iter().map(|s| s.addr().to_string()).collect(),
        };
        all.push(self.database().to_string());
        all.join(",")
    }

    pub(crate) fn database(&self) -> i64 {
        self.template.redis_settings().db()
    }

    fn at(&self, host: &str, port: u16) -> Arc<Node> {
        let addr = match self.template.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        self.node(addr)
    }

    fn node(&self, addr: ConnectionAddr) -> Arc<Node> {
        let name = addr.to_string();
        let fresh = || Arc::new(Node::new(self.template.clone().set_addr(addr)));
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry(name).or_insert_with(fresh);
        if *self.closed.borrow() {
            node.close();
        }
        node.clone()
    }

    /// Closes all connections, and opens no new ones.
    pub(crate) fn close(&self) {
        let nodes = lock(&self.nodes);
        self.closed.send_replace(true);
        nodes.values().for_each(|node| node.close());
    }

    fn remembered(&self, key: &[u8]) -> Option<Arc<Node>> {
        let known = lock(&self.known);
        if known.is_doubted { None } else { known.at(key) }
    }

    /// The primary of `key`. Right after a search, it is the primary that the search found, even if that has failed
    /// since.
    pub(crate) async fn locate(self: &Arc<Servers>, key: &[u8]) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.remembered(key) {
            return Ok(node);
        }
        let one = self.looking.clone().lock_owned().await;
        if let Some(node) = self.remembered(key) {
            return Ok(node);
        }
        if *self.closed.borrow() {
            return Err(unreached(timed_out()));
        }
        let need = lock(&self.known).searches.need(now());
        if need != Dial::Rest {
            let servers = self.clone();
            for_all(async move {
                let _one = one;
                servers.search().await;
                Ok(())
            })
            .await?;
        }
        let known = lock(&self.known);
        known.at(key).ok_or_else(|| {
            let none = (ErrorKind::Io, "no server serves the slot of this key").into();
            known.trouble.clone().unwrap_or(none)
        })
    }

    async fn search(&self) {
        let ask = async {
            match &self.topology {
                Topology::One => Ok(Known::one(self.node(self.template.addr().clone()))),
                Topology::Sentinel { sentinels, master } => {
                    self.ask_sentinels(sentinels, master).await
                }
                Topology::Cluster { seeds } => self.ask_cluster(seeds).await,
            }
        };
        let mut closed = self.closed.subscribe();
        let found = tokio::select! {
            biased;
            () = is_true(&mut closed) => Err(unreached(timed_out())),
            found = ask => found,
        };
        let mut known = lock(&self.known);
        known.searches.failed(now(), random()); // to rest, even if it found what fails at once
        let searches = std::mem::take(&mut known.searches);
        *known = match found {
            Ok(found) => Known { searches, ..found },
            Err(error) => {
                let trouble = Some(unreached(error));
                Known { searches, is_doubted: true, trouble, ..Known::default() }
            }
        };
    }

    /// All nodes, beginning with the one that answered last.
    fn in_turn<'s>(
        &'s self,
        all: &'s [ConnectionInfo],
    ) -> impl Iterator<Item = &'s ConnectionInfo> {
        let first = self.next.load(Ordering::Relaxed) % all.len().max(1);
        let pass = move |_: &&ConnectionInfo| {
            self.next.fetch_add(1, Ordering::Relaxed);
        };
        all.iter().cycle().skip(first).take(all.len()).inspect(pass)
    }

    fn answered(&self) {
        self.next.fetch_sub(1, Ordering::Relaxed);
    }

    async fn ask_sentinels(
        &self,
        sentinels: &[ConnectionInfo],
        master: &str,
    ) -> RedisResult<Known> {
        let mut trouble = None;
        for sentinel in self.in_turn(sentinels) {
            let mut ask = redis::cmd("SENTINEL");
            ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
            match once::<Option<(String, u16)>>(sentinel, &ask).await {
                Ok(Some((host, port))) => {
                    self.answered();
                    return Ok(Known::one(self.at(&host, port)));
                }
                Ok(None) => {}
                Err(error) => trouble = Some(error),
            }
        }
        let unknown = "no Sentinel monitors a primary of this name";
        let unknown = (ErrorKind::InvalidClientConfig, unknown, master.to_owned());
        Err(trouble.unwrap_or_else(|| unknown.into()))
    }

    async fn ask_cluster(&self, seeds: &[ConnectionInfo]) -> RedisResult<Known> {
        // The seeds come first and keep their indexes: the node that answered last is remembered by its index.
        let mut all = seeds.to_vec();
        all.extend(lock(&self.nodes).values().map(|node| node.info.clone()));
        let mut trouble = RedisError::from((ErrorKind::Io, "no node of the cluster answers"));
        for info in self.in_turn(&all) {
            // Each range: first, last, the primary (host, port, id, …), its replicas.
            let asked =
                match once::<Vec<Vec<Value>>>(info, redis::cmd("CLUSTER").arg("SLOTS")).await {
                    Ok(asked) => asked,
                    Err(error) => {
                        trouble = error;
                        continue;
                    }
                };
            let slots: Vec<_> = asked.iter().filter_map(|range| self.range(range, info)).collect();
            if !slots.is_empty() {
                self.answered();
                return Ok(Known { slots, ..Known::default() });
            }
        }
        Err(trouble)
    }

    fn range(&self, range: &[Value], asked: &ConnectionInfo) -> Option<(u16, u16, Arc<Node>)> {
        let [first, last, Value::Array(primary), ..] = range else { return None };
        let number = |value: &Value| redis::from_redis_value_ref::<u16>(value).ok();
        // The host is null if it is the same as that of the node that was asked.
        let host: Option<String> = redis::from_redis_value_ref(primary.first()?).ok()?;
        let port = number(primary.get(1)?)?;
        let node = self.beside(asked, &host.unwrap_or_default(), port);
        Some((number(first)?, number(last)?, node))
    }

    /// Forgets the primaries, so that the next request searches for them again.
    pub(crate) fn forget(&self) {
        lock(&self.known).is_doubted = true;
        self.is_new.store(true, Ordering::Release);
    }

    /// The node to which an error of `node` redirects. A moved slot is looked up again next time.
    pub(crate) fn redirection(&self, node: &Node, error: &RedisError) -> Option<(Arc<Node>, bool)> {
        let code = error.code().filter(|code| matches!(*code, "MOVED" | "ASK"))?;
        let (addr, _slot) = error.redirect_node()?;
        let (host, port) = addr.rsplit_once(':')?;
        self.is_sharded.store(true, Ordering::Relaxed);
        if code == "MOVED" {
            self.forget();
        }
        Some((self.beside(&node.info, host, port.parse().ok()?), code == "ASK"))
    }

    /// The node at that address. A node that does not know the host of another node names only a port.
    fn beside(&self, asked: &ConnectionInfo, host: &str, port: u16) -> Arc<Node> {
        match asked.addr() {
            ConnectionAddr::Tcp(own, _) | ConnectionAddr::TcpTls { host: own, .. }
                if host.is_empty() =>
            {
                self.at(own, port)
            }
            _ => self.at(host, port),
        }
    }

    /// Asks on the calling thread, if the primary is known, near and connected. If that brings no
    /// usable answer, the caller asks through [`Servers::ask`].
    pub(crate) fn ask_quickly(&self, key: &[u8], command: &Cmd) -> Option<RedisResult<Value>> {
        let reply = self.remembered(key)?.ask_quickly(command)?;
        if reply.as_ref().is_err_and(|error| is_broken(error) || is_no_primary(error)) {
            self.forget();
        }
        Some(reply)
    }

    /// [`Node::prepare`] for the primary of `key`, if it is known.
    pub(crate) fn prepare(&self, key: &[u8]) {
        self.remembered(key).iter().for_each(Node::prepare);
    }

    /// [`Node::ask_at_last`] for the known primary, if there is one: there is no time to search for another one.
    pub(crate) fn ask_at_last(&self, key: &[u8], command: &Cmd) -> Option<Value> {
        let node = lock(&self.known).at(key);
        node?.ask_at_last(command).ok()
    }

    fn answers(self: &Arc<Servers>, key: &[u8]) {
        if let Some(space) = self.space.get()
            && self.is_new.swap(false, Ordering::AcqRel)
        {
            meet(self.clone(), space.clone(), key.to_vec());
        }
    }

    /// Asks the primary of `key`, follows redirections, and gives up after `patience`.
    pub(crate) async fn ask(
        self: &Arc<Servers>,
        key: &[u8],
        command: &Cmd,
        patience: Duration,
    ) -> RedisResult<Value> {
        let end = Instant::now() + patience;
        let located = timeout_at(end, self.locate(key)).await;
        let mut node = located.unwrap_or_else(|_| Err(timed_out())).map_err(unreached)?;
        let mut asking = false;
        let mut hops = 0;
        loop {
            let reply = self.ask_at(&node, asking, key, command, end).await;
            let next = reply.as_ref().err().and_then(|error| self.redirection(&node, error));
            match next {
                Some((next, is_ask)) if hops < 4 => (node, asking, hops) = (next, is_ask, hops + 1),
                _ => return reply,
            }
        }
    }

    /// Asks that server.
    pub(crate) async fn ask_at(
        self: &Arc<Servers>,
        node: &Arc<Node>,
        asking: bool,
        key: &[u8],
        command: &Cmd,
        end: Instant,
    ) -> RedisResult<Value> {
        let sent = now();
        let (generation, reply) = node.send(command, asking, end).await;
        let reply = reply.map_err(|error| self.sharded(error));
        match &reply {
            Ok(_) => self.answers(key),
            Err(error) => {
                if error.is_timeout() {
                    node.distrust(sent);
                }
                if is_broken(error) || is_no_primary(error) {
                    node.hang_up(generation);
                }
                self.refused(node, error);
            }
        }
        reply
    }

    /// The only server turned out to be a node of a Cluster, as its error shows: the request is sent again, as in a
    /// Cluster.
    pub(crate) fn sharded(&self, error: RedisError) -> RedisError {
        let is_of_keys = error.detail().is_none_or(|text| !text.contains("TELL"));
        if error.code() != Some("CROSSSLOT") || is_of_keys {
            return error;
        }
        self.is_sharded.store(true, Ordering::Relaxed);
        (ErrorKind::Server(ServerErrorKind::TryAgain), "a node of a Cluster").into()
    }

    /// That server did not answer, or is no primary: another server may be.
    pub(crate) fn refused(&self, node: &Node, error: &RedisError) {
        if is_no_primary(error) {
            node.distrust(now());
        }
        if is_broken(error) || is_no_primary(error) {
            self.forget();
        }
    }

    /// Where late replies to requests for `key` go. In a Cluster, it has to be in the slot of the key.
    pub(crate) fn channel(&self, key: &[u8]) -> Arc<str> {
        if self.is_sharded.load(Ordering::Relaxed) {
            format!("rlock:tell:{{{}}}:{}", tag(slot(key)), self.image).into()
        } else {
            format!("rlock:tell:{}", self.image).into()
        }
    }

    /// Whether the server of `key` is known, and its channel is subscribed.
    pub(crate) fn hears(&self, key: &[u8]) -> bool {
        self.remembered(key).is_some_and(|node| node.inbox.hears(&self.channel(key)))
    }
}

impl Known {
    fn one(primary: Arc<Node>) -> Known {
        Known { primary: Some(primary), ..Known::default() }
    }

    fn at(&self, key: &[u8]) -> Option<Arc<Node>> {
        if self.primary.is_some() {
            return self.primary.clone();
        }
        let slot = slot(key);
        let found = self.slots.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        found.map(|(_, _, node)| node.clone())
    }
}

/// Asks on a separate connection, which takes at most a second.
async fn once<T: redis::FromRedisValue>(info: &ConnectionInfo, command: &Cmd) -> RedisResult<T> {
    let ask = async {
        let mut connection = Client::open(info.clone())?.get_multiplexed_async_connection().await?;
        command.query_async(&mut connection).await
    };
    timeout(Duration::from_secs(1), ask).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Asks the server of that key for its names again, in the background: after a failure, it may be
/// another server, or have been restarted.
fn meet(servers: Arc<Servers>, space: String, key: Vec<u8>) {
    tokio::spawn(async move {
        match servers.names(&key, PATIENCE).await {
            Ok(names) => join(names, &space),
            Err(error) if is_passing(&error) => servers.forget(),
            Err(_) => {} // this user may not ask
        }
    });
}

impl Servers {
    /// The names by which the server of that key is known; its addresses, if this user may not ask for them.
    pub(crate) async fn names(
        self: &Arc<Servers>,
        key: &[u8],
        patience: Duration,
    ) -> redis::RedisResult<Vec<String>> {
        let mut words = redis::cmd(if self.is_cluster() { "CLUSTER" } else { "INFO" });
        words.arg(if self.is_cluster() { "SLOTS" } else { "server" });
        let said = match self.ask(key, &words, patience).await {
            Err(error) if error.code() == Some("NOPERM") => return Ok(vec![self.identity()]),
            said => said?,
        };
        let names: Vec<String> = match &said {
            Value::Array(ranges) => ranges.iter().filter_map(node_of).collect(),
            text => {
                let text: String = redis::from_redis_value_ref(text)?;
                let run = text.lines().find_map(|line| line.strip_prefix("run_id:"));
                run.map(|run| format!("{run},{}", self.database())).into_iter().collect()
            }
        };
        Ok(if names.is_empty() { vec![self.identity()] } else { names })
    }
}

/// The ID of the primary of a range of slots: first, last, (host, port, ID), replicas.
fn node_of(range: &Value) -> Option<String> {
    let Value::Array(range) = range else { return None };
    let Some(Value::Array(primary)) = range.get(2) else { return None };
    redis::from_redis_value_ref(primary.get(2)?).ok()
}
