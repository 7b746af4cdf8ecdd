//! The connections of one server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ConnectionLike, PushInfo, PushKind,
    RedisError, RedisResult, Value,
};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use crate::ask::random;
use crate::clock::now;
use crate::error::{is_broken, timed_out, unreached};
use crate::machine::{self, Dial, Ms, Planted, is_condemned};
use crate::servers::{PATIENCE, lock};

/// How long a thread asks by itself before it leaves that to the crate's thread.
pub(crate) const QUICK: Duration = Duration::from_millis(300);

/// The longest round trip to a server for a thread to gain by asking itself.
const NEAR: Duration = Duration::from_millis(10);

/// How many connections are kept for threads that ask by themselves.
const PLAIN: usize = 16;

/// Which of the shared connections.
#[derive(Clone, Copy)]
pub(crate) enum Lane {
    /// For requests that are answered at once.
    Prompt,
    /// For requests that wait for acknowledgments: such a reply delays those behind it.
    Acked,
}

/// A shared connection.
#[derive(Default)]
struct Shared {
    control: Mutex<(u64, Option<MultiplexedConnection>)>,
    connecting: tokio::sync::Mutex<()>,
}

/// One server.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) info: ConnectionInfo,
    prompt: Shared,
    acked: Shared,
    idle: Mutex<Vec<Line>>,
    /// For threads that ask quickly.
    plain: Mutex<Vec<redis::Connection>>,
    /// When it is connected to, and why it was not.
    dials: Mutex<(machine::Server, Option<RedisError>)>,
    /// One dial at a time.
    dialling: tokio::sync::Mutex<()>,
    /// About how long a reply takes, in microseconds.
    round: AtomicU64,
    is_closed: AtomicBool,
}

/// A dedicated connection, for one blocked wait or for one session. Dropping it closes it.
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
            name: info.addr().to_string(),
            info,
            prompt: Shared::default(),
            acked: Shared::default(),
            idle: Mutex::default(),
            plain: Mutex::default(),
            dials: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
            round: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Asks on the shared connection.
    pub(crate) async fn send(
        self: &Arc<Node>,
        lane: Lane,
        command: &Cmd,
        asking: bool,
        end: Instant,
    ) -> (u64, RedisResult<Value>) {
        if asking {
            let ask = async { self.line().await?.ask(command, true).await };
            return (0, timeout_at(end, ask).await.unwrap_or_else(|_| Err(timed_out())));
        }
        let (generation, connection) = match timeout_at(end, self.shared(lane)).await {
            Ok(Ok(shared)) => shared,
            Ok(Err(error)) => return (0, Err(error)),
            Err(_) => return (0, Err(unreached(timed_out()))),
        };
        let (mut connection, begun) = (connection, Instant::now());
        let reply = timeout_at(end, connection.send_packed_command(command)).await;
        let reply = reply.unwrap_or_else(|_| Err(timed_out())).and_then(Value::extract_error);
        if reply.is_ok() && matches!(lane, Lane::Prompt) {
            self.took(begun.elapsed());
        }
        (generation, reply)
    }

    /// About how long a reply takes that waits for nothing.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_micros(self.round.load(Ordering::Relaxed))
    }

    fn took(&self, time: Duration) {
        // One fast reply disproves whatever slowed earlier ones: after a pause of the server, waits
        // would end early.
        let (old, new) = (self.round(), time.min(PATIENCE));
        let round = new.min(old * 7 / 8 + new / 8);
        let round = u64::try_from(round.as_micros()).unwrap_or(u64::MAX);
        self.round.store(round, Ordering::Relaxed);
    }

    pub(crate) fn hang_up(&self, lane: Lane, generation: u64) {
        let mut control = lock(&self.lane(lane).control);
        if control.0 == generation {
            control.1 = None;
        }
    }

    /// Closes what nobody uses, and the shared connections; none is opened or kept any more.
    pub(crate) fn close(&self) {
        lock(&self.dials).0.close();
        self.is_closed.store(true, Ordering::Release);
        for lane in [&self.prompt, &self.acked] {
            lock(&lane.control).1 = None;
        }
        lock(&self.idle).clear();
        lock(&self.plain).clear();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn lane(&self, lane: Lane) -> &Shared {
        match lane {
            Lane::Prompt => &self.prompt,
            Lane::Acked => &self.acked,
        }
    }

    async fn shared(&self, lane: Lane) -> RedisResult<(u64, MultiplexedConnection)> {
        let shared = self.lane(lane);
        let ready = || {
            let control = lock(&shared.control);
            control.1.clone().map(|connection| (control.0, connection))
        };
        if let Some(ready) = ready() {
            return Ok(ready);
        }
        let _one = shared.connecting.lock().await;
        if let Some(ready) = ready() {
            return Ok(ready);
        }
        let connection = self.connect(|_| {}).await?;
        let mut control = lock(&shared.control);
        control.0 += 1;
        control.1 = (!self.is_closed()).then(|| connection.clone());
        Ok((control.0, connection))
    }

    /// A new connection that reports pushed messages and its end.
    pub(crate) async fn connect(
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

    /// One dial at a time, and none right after one that failed.
    async fn dial<C>(&self, connecting: impl Future<Output = RedisResult<C>>) -> RedisResult<C> {
        let _one = self.dialling.lock().await;
        {
            let mut dials = lock(&self.dials);
            if dials.0.need(now()) == Dial::Rest {
                return Err(dials.1.clone().unwrap_or_else(|| unreached(timed_out())));
            }
        }
        // Whoever gives up meanwhile has dialled all the same.
        let dial = Dialled { node: self, error: Some(unreached(timed_out())) };
        let connected = timeout(PATIENCE, connecting).await.unwrap_or_else(|_| Err(timed_out()));
        let connected = connected.map_err(unreached);
        dial.ends(connected.as_ref().err());
        connected
    }

    /// A request of then was not answered: nor may be what is asked on connections that have said nothing since.
    pub(crate) fn distrust(&self, sent: Ms) {
        lock(&self.idle).retain(|line| !is_condemned(line.heard, sent, Planted::Nothing));
    }

    /// Asks on the calling thread, if the server is near and a connection is there.
    pub(crate) fn ask_quickly(&self, command: &Cmd) -> Option<RedisResult<Value>> {
        if self.round() > NEAR {
            return None;
        }
        let connection = lock(&self.plain).pop()?;
        Some(self.ask_plainly(connection, command))
    }

    /// The same for what the crate's thread will not do any more, wherever the server is.
    pub(crate) fn ask_at_last(&self, command: &Cmd) -> RedisResult<Value> {
        if self.is_closed() {
            return Err(unreached(timed_out()));
        }
        let idle = lock(&self.plain).pop();
        let connection = idle.map_or_else(|| plain(self.info.clone(), QUICK), Ok)?;
        self.ask_plainly(connection, command)
    }

    fn ask_plainly(&self, mut connection: redis::Connection, command: &Cmd) -> RedisResult<Value> {
        let reply = connection.req_command(command);
        if !reply.as_ref().is_err_and(is_broken) {
            self.put_plain(connection);
        }
        reply.and_then(Value::extract_error)
    }

    fn put_plain(&self, connection: redis::Connection) {
        let mut plain = lock(&self.plain);
        if plain.len() < PLAIN && !self.is_closed() {
            plain.push(connection);
        }
    }

    /// Sees to it that the next thread finds a connection. Not on the thread that needs it: to look up a name, and to
    /// connect, may take longer than its caller waits.
    pub(crate) fn prepare(self: &Arc<Node>) {
        if self.dialling.try_lock().is_err() || !lock(&self.plain).is_empty() {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
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
        loop {
            let idle = lock(&self.idle).pop();
            match idle {
                Some(line) if line.is_ended() => {}
                Some(line) => return Ok(line),
                None => break,
            }
        }
        let (tell, ended) = watch::channel(false);
        let connection = self
            .connect(move |info| {
                if info.kind == PushKind::Disconnection {
                    tell.send_replace(true);
                }
            })
            .await?;
        Ok(Line { node: self.clone(), connection, ended, heard: now() })
    }
}

impl Line {
    pub(crate) fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Reports the end of the connection.
    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Asks without a time limit; goes on by itself.
    pub(crate) async fn ask(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        asked(self.connection.clone(), command, asking).await
    }

    /// The same with words of its own.
    pub(crate) fn begin(
        &self,
        command: Cmd,
        asking: bool,
    ) -> std::pin::Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>> {
        let connection = self.connection.clone();
        Box::pin(async move { asked(connection, &command, asking).await })
    }

    /// Keeps the connection for the next wait, if it is good and fewer than `most` are kept.
    pub(crate) fn put(mut self, most: usize) {
        self.heard = now();
        let node = self.node.clone();
        let mut idle = lock(&node.idle);
        if idle.len() < most && !self.is_ended() && !node.is_closed() {
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

/// A dial under way.
struct Dialled<'n> {
    node: &'n Node,
    error: Option<RedisError>,
}

impl Dialled<'_> {
    fn ends(mut self, error: Option<&RedisError>) {
        self.error = error.cloned();
    }
}

impl Drop for Dialled<'_> {
    fn drop(&mut self) {
        let mut dials = lock(&self.node.dials);
        match self.error.take() {
            None => dials.0.dialled(),
            error => {
                dials.0.failed(now(), random());
                dials.1 = error;
            }
        }
    }
}
