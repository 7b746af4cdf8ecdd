//! Carries out what a machine wants: requests, connections, sleeps. It decides nothing.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::clock::{at, ms, now};
use crate::closing::UnderWay;
use crate::entry::Entry;
use crate::error::{Error, is_broken, is_no_primary, is_passing, is_replica, is_unsent, timed_out};
use crate::info::{is_pending, token_of};
use crate::machine::{self, Input, Machine, Ms, Outcome, Output, Request, Tell};
use crate::node::{Lane, Line, Node};
use crate::several::token_of_any;
use crate::words::words;
use crate::{Inner, Options};

/// Seven days: above, a wait has no limit for the server.
const LONGEST_BLOCK: Ms = 604_800_000;

/// A request under way, which goes on whatever happens to who waits for it.
type Pending = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// The I/O of one machine.
pub(crate) struct Ask {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    options: Options,
    depth: u32,
    /// On a shared connection, and what to make of its reply.
    request: Option<Pending>,
    /// The own connection, and the reply on it.
    line: Option<Line>,
    reply: Option<Pending>,
    /// Where it was redirected to.
    next: Option<(Arc<Node>, bool)>,
    turn: Option<(String, Arc<Notify>)>,
    slot: Option<OwnedSemaphorePermit>,
    /// Turns true when the caller has given up.
    gone: Option<watch::Receiver<bool>>,
    /// Turns true when the locker is closed.
    closed: Option<watch::Receiver<bool>>,
    under_way: Option<UnderWay>,
    /// Why the last request failed.
    trouble: Option<RedisError>,
}

impl Ask {
    pub(crate) fn new(inner: Arc<Inner>, entry: Arc<Entry>, options: Options, depth: u32) -> Ask {
        let (request, line, reply, next, turn) = (None, None, None, None, None);
        let (slot, gone, trouble, closed, under_way) = (None, None, None, None, None);
        Ask {
            inner,
            entry,
            options,
            depth,
            request,
            line,
            reply,
            next,
            turn,
            slot,
            gone,
            closed,
            under_way,
            trouble,
        }
    }

    /// From now on `close` ends it, and waits until that is done.
    pub(crate) fn begun(mut self, under_way: UnderWay) -> Ask {
        self.closed = Some(self.inner.closing.signal());
        self.under_way = Some(under_way);
        self
    }

    pub(crate) fn entry(&self) -> Arc<Entry> {
        self.entry.clone()
    }

    /// From now on the caller may go away.
    pub(crate) fn watch(&mut self, gone: watch::Receiver<bool>) {
        self.gone = Some(gone);
    }

    /// What came before the caller had its grant.
    pub(crate) fn interrupted(&self) -> Option<Input> {
        let is_so =
            |signal: &Option<watch::Receiver<bool>>| signal.as_ref().is_some_and(|so| *so.borrow());
        match (is_so(&self.gone), is_so(&self.closed)) {
            (true, _) => Some(Input::Cancel),
            (false, true) => Some(Input::Close),
            (false, false) => None,
        }
    }

    /// From now on renewals ask for that.
    pub(crate) fn lengthen(&mut self, lease: Ms) {
        self.options.lease = Duration::from_millis(lease);
    }

    pub(crate) fn take_line(&mut self) -> Option<Line> {
        self.line.take()
    }

    /// Why it was not granted, or not released.
    pub(crate) fn error(&mut self, tell: &Tell) -> Error {
        let trouble = self.trouble.take().unwrap_or_else(timed_out);
        match tell {
            Tell::Lost => Error::Lost,
            Tell::Closed => Error::Closed,
            Tell::Unavailable | Tell::NoReplicas => Error::out_of_patience(trouble),
            Tell::Refused(_) => trouble.into(),
            _ => Error::NotAcquired,
        }
    }

    /// What comes of a release.
    pub(crate) fn released(&mut self, tell: &Tell) -> Result<(), Error> {
        if *tell == Tell::Released { Ok(()) } else { Err(self.error(tell)) }
    }

    /// Drives a machine to its end, from those outputs on. `tell` may answer with an input.
    pub(crate) async fn drive(
        &mut self,
        machine: &mut impl Machine,
        mut out: Vec<Output>,
        mut tell: impl FnMut(&mut Ask, Tell, bool) -> Option<Input>,
    ) {
        let mut operation = None;
        loop {
            let (mut input, is_last) = (None, out.contains(&Output::Free));
            for output in out.drain(..) {
                match output {
                    Output::Tell(told) => {
                        self.options.on_trouble = None; // what is undone from here on is no wait
                        input = tell(self, told, is_last);
                    }
                    Output::Undo => {
                        self.gone = None;
                        self.entry.is_undone.store(true, Ordering::Release);
                    }
                    Output::Free => {
                        return self.entry.is_undone.store(false, Ordering::Release);
                    }
                    output => {
                        if self.begin(&output) {
                            operation = Some(output);
                        }
                    }
                }
            }
            let input = match (input, &operation) {
                (Some(input), _) => input,
                (None, Some(operation)) => self.or_left(operation).await,
                (None, None) => return,
            };
            machine.step(now(), input, &mut out);
        }
    }

    async fn or_left(&mut self, operation: &Output) -> Input {
        let (mut gone, mut closed) = (self.gone.clone(), self.closed.clone());
        tokio::select! {
            biased; // what has come is read before anything else is believed
            input = self.end(operation) => input,
            () = is_so(gone.as_mut()) => {
                self.gone = None;
                Input::Cancel
            }
            () = is_so(closed.as_mut()) => {
                self.closed = None;
                Input::Close
            }
        }
    }

    /// Does what is done at once, or begins an operation, and says which it is.
    pub(crate) fn begin(&mut self, output: &Output) -> bool {
        match output {
            Output::Keep => {
                self.reply = None;
                self.line.take().into_iter().for_each(|line| line.put(self.inner.most));
            }
            Output::Drop => (self.reply, self.line) = (None, None),
            Output::Own { block, session, depth, .. } => {
                let words = self.waiting(*block, *session, depth.unwrap_or(self.depth));
                let asking = self.next.take().is_some_and(|(_, is_ask)| is_ask);
                self.reply = self.line.as_ref().map(|line| line.begin(words, asking));
            }
            Output::Send(request, by) => self.request = Some(self.send(*request, *by)),
            Output::Look(by) => self.request = Some(self.look(*by)),
            Output::Sleep(_) => self.tell_once(),
            _ => {}
        }
        !matches!(output, Output::Keep | Output::Drop)
    }

    /// The end of an operation. May be dropped, and called again.
    pub(crate) async fn end(&mut self, operation: &Output) -> Input {
        match operation {
            Output::Slot => Input::Slot(self.may_block()),
            Output::Open(by) => self.open(at(*by)).await,
            Output::Own { by, .. } | Output::Read(by) => {
                let reply = or_silence(at(*by), self.reply.as_mut()).await;
                self.replied(reply)
            }
            Output::Look(by) => {
                let place = or_silence(at(*by), self.request.as_mut());
                let Some(reply) = self.reply.as_mut() else { return Input::Own(Outcome::Broken) };
                tokio::select! {
                    biased;
                    reply = reply => self.replied(Some(reply)),
                    place = place => Input::Place(match place {
                        Some(Ok(Value::Int(has_place))) => Some(has_place > 0),
                        _ => None,
                    }),
                }
            }
            Output::Send(_, by) | Output::Await(by) => {
                let reply = or_silence(at(*by), self.request.as_mut()).await;
                self.request = None;
                Input::Ended(self.outcome(reply))
            }
            Output::Listen(by) => {
                let _ = timeout_at(at(*by), self.listen()).await;
                Input::Listening
            }
            Output::Turn(by) => {
                let Some((_, turn)) = &self.turn else { return Input::Turn };
                match timeout_at(at(*by), turn.notified()).await {
                    Ok(()) => Input::Turn,
                    Err(_) => Input::Time,
                }
            }
            Output::Sleep(by) => {
                sleep_until(at(*by)).await;
                Input::Time
            }
            _ => std::future::pending().await,
        }
    }

    fn may_block(&mut self) -> bool {
        self.slot = self.inner.slots.clone().try_acquire_owned().ok();
        // What has a connection of its own anyhow, or no ticket.
        self.slot.is_some() || self.options.session || self.options.parts.is_some()
    }

    async fn open(&mut self, by: Instant) -> Input {
        let there = self.next.as_ref().map(|(node, _)| node.clone());
        let line = async {
            match there {
                Some(node) => node.line().await,
                None => self.inner.servers.locate(&self.entry.key).await?.line().await,
            }
        };
        let error = match timeout_at(by, line).await {
            Ok(Ok(line)) => {
                let round = line.node.round();
                self.line = Some(line);
                return Input::Opened(ms(round));
            }
            Ok(Err(error)) => error,
            Err(_) => timed_out(),
        };
        self.next = None; // whoever sent it there may know better by now
        self.inner.servers.forget();
        Input::Ended(match self.outcome(Some(Err(error))) {
            Outcome::Broken | Outcome::Silent => Outcome::Unsent,
            outcome => outcome,
        })
    }

    /// The reply on the own connection. `None` is silence.
    fn replied(&mut self, reply: Option<RedisResult<Value>>) -> Input {
        if reply.is_some() {
            self.reply = None;
        }
        if let (Some(Err(error)), Some(line)) = (&reply, &self.line) {
            if !is_broken(error) && !is_no_primary(error) {
                self.next = self.inner.servers.redirection(&line.node, error);
            } else {
                self.inner.servers.forget();
                if is_no_primary(error) {
                    line.node.distrust(now());
                }
                self.line = None; // nobody else should ask there
            }
        }
        let outcome = match self.outcome(reply) {
            Outcome::Unsent => Outcome::Broken,
            outcome => outcome,
        };
        Input::Own(outcome)
    }

    pub(crate) fn outcome(&mut self, reply: Option<RedisResult<Value>>) -> Outcome {
        let error = match reply {
            None => timed_out(),
            Some(Ok(reply)) => {
                self.inner.servers.served();
                return match reply {
                    Value::Nil => Outcome::Nil,
                    Value::Int(number) => Outcome::Token(number.unsigned_abs()),
                    _ => Outcome::Token(1),
                };
            }
            Some(Err(error)) => error,
        };
        let is_wrong = is_replica(&error) && self.inner.servers.is_replica();
        let outcome = match error.code() {
            _ if is_wrong => Outcome::Refused("REPLICA".to_owned()),
            Some("ERR") if is_passing(&error) => Outcome::Unsent, // too many clients
            Some(code) => Outcome::Refused(code.to_owned()),
            None if !is_passing(&error) => Outcome::Refused("CONFIG".to_owned()),
            None if is_unsent(&error) => Outcome::Unsent,
            None if error.is_timeout() => Outcome::Silent,
            None => Outcome::Broken,
        };
        self.trouble = Some(error);
        outcome
    }

    fn tell_once(&mut self) {
        if let Some(trouble) = &self.trouble {
            self.options.tell(trouble);
        }
    }

    // --- requests -------------------------------------------------------------------------------

    /// The server accepts no longer `BLOCK`. The attempt still ends by its own clock.
    fn waiting(&self, block: Option<Ms>, session: bool, depth: u32) -> Cmd {
        let mut words = self.options.words(&self.entry.key, depth);
        if session {
            words.arg("SESSION");
        }
        if let Some(block) = block {
            words.arg("BLOCK").arg(if block > LONGEST_BLOCK { 0 } else { block });
            self.options.add_most(&mut words);
        }
        words
    }

    pub(crate) fn words(&self, request: Request) -> Cmd {
        words(request, &self.entry.key, &self.options, self.depth)
    }

    fn send(&self, request: Request, by: Ms) -> Pending {
        let words = self.words(request);
        let lane = match request {
            Request::Acquire | Request::Queue | Request::Renew(_) => self.options.lane(),
            _ => Lane::Prompt,
        };
        let (inner, entry, options) =
            (self.inner.clone(), self.entry.clone(), self.options.clone());
        Box::pin(async move {
            if let (Request::Info, Some(parts)) = (request, &options.parts) {
                return token_of_any(&inner, &options, parts, by).await;
            }
            let patience = at(by).saturating_duration_since(Instant::now());
            let reply = inner.servers.ask_on(lane, &entry.key, &words, patience).await?;
            match request {
                Request::Info => {
                    Ok(token_of(&reply, &options.owner, options.mode())
                        .map_or(Value::Nil, Value::Int))
                }
                _ => options.checked(request, reply),
            }
        })
    }

    /// Whether the wait has its place: 1 or 0, or nobody can say.
    fn look(&self, by: Ms) -> Pending {
        let place = self.send(Request::Place, by);
        let words = self.words(Request::Info);
        let (inner, entry, owner) =
            (self.inner.clone(), self.entry.clone(), self.options.owner.clone());
        let node = self.line.as_ref().map(|line| line.node.name.clone());
        Box::pin(async move {
            let patience = at(by).saturating_duration_since(Instant::now());
            let found = match place.await {
                Ok(Value::Nil) => inner.servers.ask(&entry.key, &words, patience).await,
                place => place.map(|_| Value::Okay),
            };
            match found {
                Ok(Value::Okay) => Ok(Value::Int(1)),
                Ok(info) => Ok(Value::Int(is_pending(&info, &owner).into())),
                // Is that server still the primary?
                Err(error) => match inner.servers.locate(&entry.key).await {
                    Ok(primary) if Some(&primary.name) != node.as_ref() => Ok(Value::Int(0)),
                    _ => Err(error),
                },
            }
        })
    }

    async fn listen(&mut self) {
        let inner = self.inner.clone();
        let (channel, _) = self.turn.get_or_insert_with(|| {
            let database = inner.servers.database();
            // Of all bytes, only NUL is not published as it is.
            let owner = self.options.owner.replace('\0', "\\x00");
            let channel = format!("__keyevent@{database}__:rlock.turn:{owner}");
            let turn = inner.turns.listen(&channel);
            (channel, turn)
        });
        inner.turns.subscribe(&inner.servers, &self.entry.key, channel).await;
    }

    /// It listens no more.
    pub(crate) fn hush(&mut self) {
        if let Some((channel, _)) = self.turn.take() {
            self.inner.turns.hush(&channel);
        }
    }
}

/// The reply, unless it does not come in time.
async fn or_silence(by: Instant, reply: Option<&mut Pending>) -> Option<RedisResult<Value>> {
    match reply {
        Some(reply) => timeout_at(by, reply).await.ok(),
        None => Some(Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into())),
    }
}

/// Answers a call: at once, or when nothing is left any more, but not later than [`machine::LATE`].
pub(crate) fn answer<T: Send + 'static>(
    told: oneshot::Sender<T>,
    answer: T,
    left: Option<oneshot::Receiver<()>>,
) {
    match left {
        None => drop(told.send(answer)),
        Some(left) => {
            tokio::spawn(async move {
                let _ = timeout(Duration::from_millis(machine::LATE), left).await;
                drop(told.send(answer));
            });
        }
    }
}

/// Waits until it is true; forever if there is none.
async fn is_so(signal: Option<&mut watch::Receiver<bool>>) {
    match signal {
        Some(signal) => is_true(signal).await,
        None => std::future::pending().await,
    }
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

/// A random number below 1000, so that many do not come back at once.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish() % 1000
}
