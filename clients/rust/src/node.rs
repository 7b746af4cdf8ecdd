//! The connections of one server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ConnectionLike, PushInfo, PushKind,
    RedisError, RedisResult, Value,
};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::{ms, now};
use crate::error::{broken, is_broken, is_no_primary, timed_out, unreached};
use crate::inbox::{Inbox, Link, Post, State};
use crate::machine::{self, Dial, Ms, Planted, is_condemned};
use crate::util::{PATIENCE, for_all, is_true, lock, random};

/// How long a calling thread tries by itself before it hands the request to the crate's thread.
pub(crate) const QUICK: Duration = Duration::from_millis(300);

/// The longest round trip at which it is faster for a thread to send requests itself.
const NEAR: Duration = Duration::from_millis(10);

/// How many idle connections are kept for threads that send requests themselves, and for sessions.
const PLAIN: usize = 16;
const IDLE: usize = 16;

/// A shared connection.
#[derive(Default)]
struct Shared {
    control: Mutex<(u64, Option<MultiplexedConnection>)>,
    connecting: Arc<tokio::sync::Mutex<()>>,
}

/// One server.
pub(crate) struct Node {
    pub(crate) info: ConnectionInfo,
    shared: Shared,
    /// Late replies.
    pub(crate) inbox: Inbox,
    idle: Mutex<Vec<Line>>,
    /// Connections for threads that send requests themselves.
    plain: Mutex<Vec<redis::Connection>>,
    /// When to try to connect again, and the error of the last attempt.
    dials: Mutex<(machine::Server, Option<RedisError>)>,
    /// Only one dial at a time.
    dialling: Arc<tokio::sync::Mutex<()>>,
    /// About how long a reply takes, in microseconds.
    round: AtomicU64,
    /// When the last unanswered request was sent.
    silent: AtomicU64,
    /// Until when requests of callers that cannot wait are not sent to it.
    silent_until: AtomicU64,
    closed: watch::Sender<bool>,
}

/// A dedicated connection, for one session. Dropping it closes it.
pub(crate) struct Line {
    pub(crate) node: Arc<Node>,
    pub(crate) connection: MultiplexedConnection,
    ended: watch::Receiver<bool>,
    /// When it was used last.
    heard: Ms,
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo) -> Node {
        Node {
            info,
            shared: Shared::default(),
            inbox: Inbox::default(),
            idle: Mutex::default(),
            plain: Mutex::default(),
            dials: Mutex::default(),
            dialling: Arc::default(),
            round: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            silent_until: AtomicU64::new(0),
            closed: watch::Sender::new(false),
        }
    }

    /// Asks on the shared connection.
    pub(crate) async fn send(
        self: &Arc<Node>,
        command: &Cmd,
        asking: bool,
        end: Instant,
    ) -> (u64, RedisResult<Value>) {
        if asking {
            let ask = async { self.line().await?.ask(command, true).await };
            return (0, timeout_at(end, ask).await.unwrap_or_else(|_| Err(timed_out())));
        }
        let (generation, connection) = match timeout_at(end, self.shared()).await {
            Ok(Ok(shared)) => shared,
            Ok(Err(error)) => return (0, Err(error)),
            Err(_) => return (0, Err(unreached(timed_out()))),
        };
        let (mut connection, begun) = (connection, Instant::now());
        let reply = timeout_at(end, connection.send_packed_command(command)).await;
        let reply = reply.unwrap_or_else(|_| Err(timed_out())).and_then(Value::extract_error);
        if reply.is_ok() {
            self.took(begun.elapsed());
        }
        (generation, reply)
    }

    /// About how long a reply takes.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_micros(self.round.load(Ordering::Relaxed))
    }

    pub(crate) fn took(&self, time: Duration) {
        // A single fast reply replaces all slower ones: otherwise, waits after a pause of the
        // server would end too early.
        let (old, new) = (self.round(), time.min(PATIENCE));
        let round = new.min(old * 7 / 8 + new / 8);
        let round = u64::try_from(round.as_micros()).unwrap_or(u64::MAX);
        self.round.store(round, Ordering::Relaxed);
    }

    pub(crate) fn hang_up(&self, generation: u64) {
        let mut control = lock(&self.shared.control);
        if control.0 == generation {
            control.1 = None;
        }
    }

    /// Closes idle and shared connections; from now on, none is opened or kept.
    pub(crate) fn close(&self) {
        lock(&self.dials).0.close();
        self.closed.send_replace(true);
        lock(&self.shared.control).1 = None;
        self.inbox.close();
        lock(&self.idle).clear();
        lock(&self.plain).clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    async fn shared(self: &Arc<Node>) -> RedisResult<(u64, MultiplexedConnection)> {
        let ready = || {
            let control = lock(&self.shared.control);
            control.1.clone().map(|connection| (control.0, connection))
        };
        if let Some(ready) = ready() {
            return Ok(ready);
        }
        let one = self.shared.connecting.clone().lock_owned().await;
        if let Some(ready) = ready() {
            return Ok(ready);
        }
        let node = self.clone();
        for_all(async move {
            let _one = one;
            let connection = node.connect(|_| {}).await?;
            let mut control = lock(&node.shared.control);
            control.0 += 1;
            control.1 = (!node.is_closed()).then(|| connection.clone());
            Ok((control.0, connection))
        })
        .await
    }

    /// A new connection that reports pushed messages and its end. Must be called in [`for_all`].
    pub(crate) async fn connect(
        &self,
        tell: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let _one = self.dialling.lock().await;
        self.connect_next(tell).await
    }

    /// Like `connect`, for a caller that need not wait for other dials.
    async fn connect_next(
        &self,
        tell: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(None)
            .set_push_sender(move |info: PushInfo| {
                tell(info);
                Ok::<(), ()>(())
            });
        let client = Client::open(self.info.clone())?;
        self.dial(client.get_multiplexed_async_connection_with_config(&config)).await
    }

    /// Does not dial for a moment after a failed dial.
    async fn dial<C>(&self, connecting: impl Future<Output = RedisResult<C>>) -> RedisResult<C> {
        {
            let mut dials = lock(&self.dials);
            if dials.0.need(now()) == Dial::Rest {
                return Err(dials.1.clone().unwrap_or_else(|| unreached(timed_out())));
            }
        }
        let mut closed = self.closed.subscribe();
        let connected = tokio::select! {
            biased;
            () = is_true(&mut closed) => Err(timed_out()),
            connected = timeout(PATIENCE, connecting) => connected.unwrap_or_else(|_| Err(timed_out())),
        };
        let connected = connected.map_err(unreached);
        let mut dials = lock(&self.dials);
        match &connected {
            Ok(_) => dials.0.dialled(),
            Err(error) => {
                dials.0.failed(now(), random());
                dials.1 = Some(error.clone());
            }
        }
        connected
    }

    /// A request that was sent then went unanswered, or its server is no longer a primary:
    /// connections that have been silent since are not used any more.
    pub(crate) fn distrust(&self, sent: Ms) {
        self.silent.fetch_max(sent, Ordering::Relaxed);
        lock(&self.idle).retain(Line::is_usable);
        lock(&self.plain).clear();
        self.inbox.distrust(sent);
    }

    /// Sends a request on the calling thread, if the server is near and a connection is ready.
    pub(crate) fn ask_quickly(&self, command: &Cmd) -> Option<RedisResult<Value>> {
        if self.round() > NEAR {
            return None;
        }
        let connection = lock(&self.plain).pop()?;
        Some(self.ask_plainly(connection, command))
    }

    /// Sends a request that no runtime will send anymore, wherever the server is. A server that did not answer is not
    /// asked again for a while: a program with a thousand holds must be able to end, too.
    pub(crate) fn ask_at_last(&self, command: &Cmd) -> RedisResult<Value> {
        let is_silent = now() < self.silent_until.load(Ordering::Relaxed);
        if is_silent || self.is_closed() {
            return Err(unreached(timed_out()));
        }
        let idle = lock(&self.plain).pop();
        let connection = idle.map_or_else(|| plain(self.info.clone(), QUICK), Ok);
        let reply = connection.and_then(|connection| self.ask_plainly(connection, command));
        if reply.as_ref().is_err_and(is_broken) {
            let until = now().saturating_add(ms(PATIENCE));
            self.silent_until.store(until, Ordering::Relaxed);
        }
        reply
    }

    fn ask_plainly(&self, mut connection: redis::Connection, command: &Cmd) -> RedisResult<Value> {
        let sent = now();
        let reply = connection.req_command(command).and_then(Value::extract_error);
        match &reply {
            Err(error) if is_broken(error) || is_no_primary(error) => self.distrust(sent),
            _ => self.put_plain(connection),
        }
        reply
    }

    fn put_plain(&self, connection: redis::Connection) {
        let mut plain = lock(&self.plain);
        if plain.len() < PLAIN && !self.is_closed() {
            plain.push(connection);
        }
    }

    /// Opens a connection for the next thread, if there is none. Not on the thread that needs it:
    /// name resolution and connecting may take longer than its caller waits.
    pub(crate) fn prepare(self: &Arc<Node>) {
        let Ok(one) = self.dialling.clone().try_lock_owned() else { return };
        if !lock(&self.plain).is_empty() {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
            let _one = one;
            let info = node.info.clone();
            let connecting = async {
                let connected = spawn_blocking(move || plain(info, PATIENCE)).await;
                connected.unwrap_or_else(|_| Err(timed_out()))
            };
            if let Ok(connection) = node.dial(connecting).await {
                node.put_plain(connection);
            }
        });
    }

    /// An idle connection, or a new one.
    pub(crate) async fn line(self: &Arc<Node>) -> RedisResult<Line> {
        if let Some(line) = self.idle_line() {
            return Ok(line);
        }
        let one = self.dialling.clone().lock_owned().await;
        if let Some(line) = self.idle_line() {
            return Ok(line);
        }
        let (node, (tell, told)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let line = node.new_line().await;
            if let Err(Ok(line)) = tell.send(line) {
                line.put(); // for the next caller, because the one that needed it has given up
            }
            drop(one);
        });
        told.await.unwrap_or_else(|_| Err(unreached(timed_out())))
    }

    fn idle_line(&self) -> Option<Line> {
        let mut idle = lock(&self.idle);
        std::iter::from_fn(|| idle.pop()).find(|line| !line.is_ended())
    }

    async fn new_line(self: &Arc<Node>) -> RedisResult<Line> {
        let (tell, ended) = watch::channel(false);
        let tell = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection {
                tell.send_replace(true);
            }
        };
        let connection = self.connect_next(tell).await?;
        Ok(Line { node: self.clone(), connection, ended, heard: now() })
    }
}

impl Line {
    pub(crate) fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Whether the connection is open, and was not silent since a request went unanswered.
    pub(crate) fn is_usable(&self) -> bool {
        let silent = self.node.silent.load(Ordering::Relaxed);
        !self.is_ended() && !is_condemned(self.heard, silent, Planted::Nothing)
    }

    pub(crate) fn hears(&mut self) {
        self.heard = now();
    }

    /// Reports the end of the connection.
    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Sends a request without a time limit. The request continues even if the future is dropped.
    pub(crate) async fn ask(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        asked(self.connection.clone(), command, asking).await
    }

    /// The same with given words.
    pub(crate) fn begin(
        &self,
        command: Cmd,
        asking: bool,
    ) -> std::pin::Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>> {
        let connection = self.connection.clone();
        Box::pin(async move { asked(connection, &command, asking).await })
    }

    /// Keeps the connection for the next session, if it is usable and few are kept.
    pub(crate) fn put(mut self) {
        self.heard = now();
        let node = self.node.clone();
        let mut idle = lock(&node.idle);
        if idle.len() < IDLE && !self.is_ended() && !node.is_closed() {
            idle.push(self);
        }
    }
}

/// A connection for a thread.
fn plain(info: ConnectionInfo, patience: Duration) -> RedisResult<redis::Connection> {
    let connection = Client::open(info)?.get_connection_with_timeout(patience)?;
    connection.set_read_timeout(Some(QUICK))?;
    Ok(connection)
}

async fn asked(
    mut connection: MultiplexedConnection,
    command: &Cmd,
    asking: bool,
) -> RedisResult<Value> {
    if asking {
        connection.send_packed_command(&redis::cmd("ASKING")).await?;
    }
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}

impl Node {
    /// Subscribes to the channel, if it is not subscribed.
    pub(crate) async fn listen(
        self: &Arc<Node>,
        channel: &Arc<str>,
        asking: bool,
    ) -> RedisResult<Arc<Post>> {
        if let Some((post, state)) = self.inbox.subscribed(channel, asking) {
            return done(post, state).await;
        }
        let one = self.inbox.connecting.clone().lock_owned().await;
        if self.inbox.subscribed(channel, asking).is_none() {
            let node = self.clone();
            for_all(async move {
                let _one = one;
                node.open_inbox().await
            })
            .await?;
        }
        let (post, state) = self.inbox.subscribed(channel, asking).ok_or_else(broken)?;
        let begun = Instant::now();
        let post = done(post, state).await?;
        self.took(begun.elapsed());
        Ok(post)
    }

    async fn open_inbox(self: &Arc<Node>) -> RedisResult<()> {
        let post = Arc::new(Post::default());
        post.hears();
        let receiver = post.clone();
        let connection = self.connect(move |info| receiver.receives(&info)).await?;
        let node = Arc::downgrade(self);
        let forget = move |post: &Arc<Post>| {
            node.upgrade().iter().for_each(|node| node.inbox.forget(post));
        };
        let link = Link::new(post, connection, forget);
        self.inbox.open((!self.is_closed()).then_some(link));
        Ok(())
    }
}

async fn done(post: Arc<Post>, mut state: watch::Receiver<State>) -> RedisResult<Arc<Post>> {
    let done = state.wait_for(Option::is_some).await;
    done.ok().and_then(|done| done.clone()).unwrap_or_else(|| Err(broken()))?;
    Ok(post)
}
