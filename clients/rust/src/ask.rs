//! One acquisition: at once if the lock is free, by a blocked wait on its own connection, or by ticket.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::entry::Entry;
use crate::error::{Error, is_broken, is_not_held, is_passing, is_unsent};
use crate::servers::{Line, Node, PATIENCE};
use crate::{Inner, Options};

/// How long a ticket outlives a process that no longer asks, and how often we ask.
const TICKET_WINDOW: Duration = Duration::from_secs(3);
const TICKET_POLL: Duration = Duration::from_millis(950);
/// How long the server has to end a wait whose caller gave up, and the longest pause between tries.
pub(crate) const TIDYING: Duration = Duration::from_millis(500);
/// How late a call may return: for a reply that comes at the last moment, and then for what is undone quickly.
pub(crate) const LATE: Duration = Duration::from_millis(50);

pub(crate) struct Ask {
    pub(crate) inner: Arc<Inner>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) options: Options,
    /// The depth to reach.
    pub(crate) depth: u32,
    /// When to give up.
    pub(crate) end: Option<Instant>,
    /// When the granted request was sent; the lease did not begin earlier.
    pub(crate) sent: Instant,
    /// A reply is missing, so the lock may have been granted.
    pub(crate) is_unsure: bool,
    /// It was granted, and nobody takes it.
    pub(crate) is_unwanted: bool,
    /// A ticket may stand.
    pub(crate) is_placed: bool,
    pub(crate) session: Option<Line>,
    /// Whether to begin a session.
    pub(crate) ties: bool,
    /// Turns true when the caller has given up.
    pub(crate) gone: watch::Receiver<bool>,
}

enum Answer {
    Token(u64),
    Refused,
}

fn answer(reply: RedisResult<Value>) -> RedisResult<Answer> {
    Ok(match redis::from_redis_value::<Option<u64>>(reply?)? {
        Some(token) => Answer::Token(token),
        None => Answer::Refused,
    })
}

impl Ask {
    /// Asks until there is a grant, a refusal, or no time left. If the caller gives up, the result is `NotAcquired`.
    pub(crate) async fn run(&mut self) -> Result<u64, Error> {
        let mut pause = Duration::from_millis(10);
        loop {
            let outcome = match self.end {
                None => self.once_and_sure().await,
                Some(end) => match timeout_at(end + LATE, self.once_and_sure()).await {
                    Ok(outcome) => outcome,
                    Err(_) => {
                        // What was cut short may be executed later.
                        (self.is_unsure, self.is_placed, self.session) = (true, true, None);
                        Err(crate::error::timed_out())
                    }
                },
            };
            if *self.gone.borrow() {
                self.is_unwanted |= matches!(outcome, Ok(Answer::Token(_)));
                return Err(Error::NotAcquired);
            }
            let trouble = match outcome {
                Ok(Answer::Token(token)) => return Ok(token),
                Ok(Answer::Refused) => return Err(Error::NotAcquired),
                Err(error) if is_passing(&error) => {
                    self.tell_once(&error);
                    error
                }
                // Granted after a long wait, and lost before we noticed: ask again.
                Err(error) if is_not_held(&error) && self.depth == 1 => error,
                Err(error) => return Err(error.into()),
            };
            let left = self.left();
            if left.is_zero() {
                return Err(Error::out_of_patience(trouble));
            }
            tokio::select! {
                () = sleep(left.min(pause / 2 + jitter(pause))) => {}
                () = is_true(&mut self.gone) => {}
            }
            pause = (pause * 2).min(TIDYING);
        }
    }

    async fn once_and_sure(&mut self) -> RedisResult<Answer> {
        let outcome = self.once().await;
        if let Ok(Answer::Token(token)) = outcome
            && self.sent.elapsed() > self.options.lease / 3
            && let Err(error) = self.confirm(token).await
        {
            self.session = None;
            return Err(error);
        }
        outcome
    }

    fn tell_once(&mut self, trouble: &RedisError) {
        if self.options.wait != Some(Duration::ZERO)
            && let Some(tell) = self.options.on_trouble.take()
        {
            tell(trouble);
        }
    }

    async fn once(&mut self) -> RedisResult<Answer> {
        if self.ties {
            return self.blocked().await;
        }
        let waits = self.options.wait != Some(Duration::ZERO);
        // A reply that waits for replicas delays those behind it, so this uses its own connection.
        if !waits || !self.options.has_acks() {
            let way_in = self.options.words(&self.entry.key, self.depth);
            let first = self.plain(&way_in).await?;
            if matches!(first, Answer::Token(_)) || !waits {
                return Ok(first);
            }
        }
        match self.inner.slots.clone().try_acquire_owned() {
            Ok(_slot) => self.blocked().await,
            Err(_) => self.ticket().await,
        }
    }

    /// Not cut short when the caller gives up: an unread reply would be a hold that nobody knows of.
    async fn plain(&mut self, words: &Cmd) -> RedisResult<Answer> {
        self.sent = Instant::now();
        let (lane, servers) = (self.options.lane(), &self.inner.servers);
        let patience = if self.options.has_acks() { PATIENCE * 2 } else { PATIENCE };
        let reply = answer(servers.ask_on(lane, &self.entry.key, words, patience).await);
        self.is_unsure |= reply.as_ref().is_err_and(|error| is_broken(error) && !is_unsent(error));
        reply
    }

    fn left(&self) -> Duration {
        self.end
            .map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()))
    }

    /// The reply comes in time, however far the server is.
    fn short_of_a_round(&self) -> Duration {
        self.left().saturating_sub(self.inner.servers.round())
    }

    fn waiting(&self, words: &mut Cmd, way: &str, wait: Duration) {
        words.arg(way).arg(millis(wait));
        if let Some(most) = self.options.max_queue {
            words.arg("MAXQUEUE").arg(most);
        }
    }

    /// Asks on its own connection, which a session keeps.
    async fn blocked(&mut self) -> RedisResult<Answer> {
        let mut words = self.options.words(&self.entry.key, self.depth);
        if self.ties {
            words.arg("SESSION");
        }
        if self.options.wait != Some(Duration::ZERO) {
            // BLOCK 0 waits forever, so the shortest wait is 1 ms.
            let wait = self
                .end
                .map_or(Duration::ZERO, |_| self.short_of_a_round().max(Duration::from_millis(1)));
            self.waiting(&mut words, "BLOCK", wait);
        }
        let (mut node, mut asking) = (self.inner.servers.locate(&self.entry.key).await?, false);
        for _ in 0..4 {
            let line = match node.line().await {
                Ok(line) => line,
                Err(error) => {
                    self.inner.servers.forget();
                    return Err(error);
                }
            };
            let reply = self.on(line, &words, asking).await;
            match &reply {
                Err(error) if is_broken(error) => self.inner.servers.forget(),
                Err(error) => {
                    if let Some(next) = self.inner.servers.redirection(&node, error) {
                        (node, asking) = next;
                        continue;
                    }
                }
                Ok(_) => {}
            }
            return reply;
        }
        Err(RedisError::from((redis::ErrorKind::Io, "sent to and fro between servers")))
    }

    /// Asks on `line`. When the caller gives up, gives up the place, and then checks whether the grant came first.
    async fn on(&mut self, line: Line, words: &Cmd, asking: bool) -> RedisResult<Answer> {
        self.sent = Instant::now();
        let late = self.end.map(|end| end.max(self.sent) + LATE);
        let mut gone = self.gone.clone();
        let mut pending = Box::pin(line.ask(words, asking));
        let reply = tokio::select! {
            reply = &mut pending => answer(reply),
            () = sleep_until(late.unwrap_or(self.sent)), if late.is_some() => Err(crate::error::timed_out()),
            () = self.unknown(&line.node), if self.options.wait != Some(Duration::ZERO) => Err(crate::error::timed_out()),
            () = is_true(&mut gone) => self.withdraw(&mut pending).await,
        };
        drop(pending);
        match &reply {
            Err(error) if is_broken(error) => self.is_unsure = true, // and the connection is closed
            Ok(Answer::Token(_)) if self.ties => self.session = Some(line),
            _ => line.put(self.inner.most),
        }
        reply
    }

    /// Ends the wait. Repeats that, because the caller may give up just before the wait begins.
    async fn withdraw(
        &self,
        pending: &mut (impl Future<Output = RedisResult<Value>> + Unpin),
    ) -> RedisResult<Answer> {
        let end = Instant::now() + 2 * TIDYING;
        while Instant::now() < end {
            let words = self.cancel();
            let cancel = self.inner.servers.ask(&self.entry.key, &words, TIDYING);
            let (_, reply) =
                tokio::join!(cancel, timeout(Duration::from_millis(20), &mut *pending));
            if let Ok(reply) = reply {
                return answer(reply);
            }
        }
        Err(crate::error::timed_out())
    }

    fn cancel(&self) -> Cmd {
        let mut words = redis::cmd("RLOCK.CANCEL");
        words.arg(&self.entry.key).arg(&self.options.owner);
        words
    }

    async fn has_place(&self) -> RedisResult<bool> {
        let mut words = redis::cmd("RLOCK.PLACE");
        words.arg(&self.entry.key).arg(&self.options.owner);
        let ask = |words| self.inner.servers.ask(&self.entry.key, words, Duration::from_secs(1));
        if ask(&words).await? != Value::Nil {
            return Ok(true);
        }
        Ok(is_pending(
            &ask(redis::cmd("RLOCK.INFO").arg(&self.entry.key)).await?,
            &self.options.owner,
        ))
    }

    /// Resolves when the current primary does not know of the wait at `node`, which was stopped or cut off and may stay
    /// silent forever.
    async fn unknown(&self, node: &Node) {
        let mut misses = 0;
        while misses < 2 {
            sleep(Duration::from_secs(1)).await;
            let is_miss = match self.has_place().await {
                Ok(has_place) => !has_place,
                // The place is unknown. Is that server still the primary?
                Err(_) => match timeout(PATIENCE, self.inner.servers.locate(&self.entry.key)).await
                {
                    Ok(Ok(primary)) => primary.name != node.name,
                    _ => false,
                },
            };
            misses = if is_miss { misses + 1 } else { 0 };
        }
    }

    /// Keeps a place by asking repeatedly, and at once when its turn is announced.
    async fn ticket(&mut self) -> RedisResult<Answer> {
        let channel = format!(
            "__keyevent@{}__:rlock.turn:{}",
            self.inner.servers.database(),
            self.options.owner
        );
        let turn = self.inner.turns.listen(&channel);
        let outcome = self.take_turns(&channel, &turn).await;
        self.inner.turns.hush(&channel).await;
        outcome
    }

    async fn take_turns(
        &mut self,
        channel: &str,
        turn: &tokio::sync::Notify,
    ) -> RedisResult<Answer> {
        let mut words = self.options.words(&self.entry.key, self.depth);
        self.waiting(&mut words, "QUEUE", TICKET_WINDOW);
        loop {
            let inner = self.inner.clone();
            inner.turns.subscribe(&inner.servers, &self.entry.key, channel).await;
            let was_placed = std::mem::replace(&mut self.is_placed, true);
            let reply = self.plain(&words).await;
            match reply {
                Ok(Answer::Token(_)) => self.is_placed = false,
                Ok(Answer::Refused) => {}
                Err(_) => return reply,
            }
            if !matches!(reply, Ok(Answer::Refused)) {
                return reply;
            }
            let is_full = self.options.max_queue.is_some() && !was_placed;
            if is_full && matches!(self.has_place().await, Ok(false)) {
                return reply;
            }
            let left = self.left();
            if left.is_zero() {
                return reply;
            }
            let mut gone = self.gone.clone();
            tokio::select! {
                () = turn.notified() => {}
                () = sleep(left.min(TICKET_POLL + jitter(TICKET_POLL / 10))) => {}
                () = is_true(&mut gone) => return Ok(Answer::Refused),
            }
            if self.left().is_zero() {
                return Ok(Answer::Refused); // the place is given up behind the caller
            }
        }
    }

    /// Renews a hold that was granted after a long wait, because the reply may have been unread for some time.
    async fn confirm(&mut self, token: u64) -> RedisResult<()> {
        let until = Instant::now() + self.options.lease;
        loop {
            let sent = Instant::now();
            match self.entry.renew(&self.inner, &self.options, token, PATIENCE).await {
                Ok(()) => {
                    self.sent = sent;
                    return Ok(());
                }
                Err(error) if is_passing(&error) && Instant::now() < until => {
                    sleep(Duration::from_millis(20)).await
                }
                Err(error) => {
                    self.is_unsure = true;
                    return Err(error);
                }
            }
        }
    }

    /// Undoes what the acquisition may have left: a place, and a grant whose reply was lost.
    pub(crate) async fn undo(&self) {
        let end = Instant::now() + self.options.lease + PATIENCE;
        let (mut again, mut pause) = (self.is_unsure, Duration::from_millis(20));
        loop {
            let mut done = self.tell(&self.cancel()).await.map(drop);
            if done.is_ok() && (self.is_unsure || self.is_unwanted) {
                done = self.let_go().await;
            }
            let is_passing = done.as_ref().is_err_and(is_passing);
            if is_passing && Instant::now() < end {
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            } else if again && !is_passing {
                // Once more: the server may only now execute what it had yet to read from a closed connection.
                again = false;
                sleep(TIDYING).await;
            } else {
                return;
            }
        }
    }

    /// Releases what may have been granted, by its token: should this arrive late, it ends no later hold.
    async fn let_go(&self) -> RedisResult<()> {
        let Ask { entry, options, .. } = self;
        let mut info = redis::cmd("RLOCK.INFO");
        info.arg(&entry.key).arg("HOLDERS").arg(10_000).arg("WAITERS").arg(0);
        let Some(token) = token_of(&self.tell(&info).await?, options) else { return Ok(()) };
        let mut release = redis::cmd("RLOCK.RELEASE");
        release.arg(&entry.key).arg(&options.owner).arg(options.mode());
        release.arg("TOKEN").arg(token).arg("DEPTH").arg(self.depth.saturating_sub(1));
        self.tell(&release).await.map(drop)
    }

    async fn tell(&self, words: &Cmd) -> RedisResult<Value> {
        self.inner.servers.ask(&self.entry.key, words, PATIENCE).await
    }
}

/// The token of what that owner holds in that mode.
fn token_of(info: &Value, options: &Options) -> Option<u64> {
    let mode = options.mode().to_lowercase();
    let Value::Array(holders) = field(info, "holders")? else { return None };
    let mut own = holders.iter().filter(|holder| {
        is_text(field(holder, "owner"), &options.owner) && is_text(field(holder, "mode"), &mode)
    });
    redis::from_redis_value_ref(field(own.next()?, "token")?).ok()
}

fn is_text(value: Option<&Value>, text: &str) -> bool {
    value.is_some_and(|value| {
        redis::from_redis_value_ref(value).is_ok_and(|said: String| said == text)
    })
}

/// Whether that owner has a pending grant.
fn is_pending(info: &Value, owner: &str) -> bool {
    let Some(Value::Array(holders)) = field(info, "holders") else { return false };
    holders.iter().any(|holder| {
        is_text(field(holder, "owner"), owner) && is_text(field(holder, "acks"), "pending")
    })
}

fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = map.as_map_iter()?;
    let mut found = fields
        .filter(|(key, _)| redis::from_redis_value_ref(key).is_ok_and(|text: String| text == name));
    found.next().map(|(_, value)| value)
}

/// Waits until it is true; forever if the sender is dropped.
pub(crate) async fn is_true(signal: &mut watch::Receiver<bool>) {
    if signal.wait_for(|is_so| *is_so).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Whole milliseconds; at least 1 if the duration is not zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// A random time below `most`, so that many do not come back at once.
pub(crate) fn jitter(most: Duration) -> Duration {
    let some = RandomState::new().build_hasher().finish() % 1000;
    most * u32::try_from(some).unwrap_or(0) / 1000
}
