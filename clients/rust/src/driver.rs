//! Carries out what a machine asks for: requests, connections, pauses. It decides nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Inner;
use crate::clock::{at, ms, now};
use crate::closing::UnderWay;
use crate::error::{
    Error, broken, is_broken, is_no_primary, is_passing, is_replica, is_unsent, needs_tell,
    timed_out,
};
use crate::inbox::{Letter, Post};
use crate::info::token_of;
use crate::machine::{Input, Machine, Ms, Outcome, Output, Request, Tell};
use crate::node::{Line, Node};
use crate::one::One;
use crate::options::Options;
use crate::seat::Seat;
use crate::util::is_so;
use crate::words::{acquire, words};

/// A request in progress. It continues even if nobody waits for it any more.
type Pending = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// The I/O of one machine.
pub(crate) struct Driver {
    inner: Arc<Inner>,
    seat: Arc<Seat>,
    options: Options,
    depth: u32,
    /// The request on a shared connection, and how to read its reply.
    request: Option<Pending>,
    /// The dedicated connection, and the reply on it.
    line: Option<Line>,
    reply: Option<Pending>,
    /// The target of the last redirection.
    next: Option<(Arc<Node>, bool)>,
    /// The server whose late replies it receives, and the late reply that it waits for.
    heard: Option<(Arc<Node>, Arc<Post>)>,
    letter: Option<Letter>,
    /// Becomes true when the caller has given up.
    gone: Option<watch::Receiver<bool>>,
    /// Becomes true when the locker is closed.
    closed: Option<watch::Receiver<bool>>,
    under_way: Option<UnderWay>,
    /// Why the last request failed.
    trouble: Option<RedisError>,
}

impl Driver {
    pub(crate) fn new(inner: Arc<Inner>, seat: Arc<Seat>, options: Options, depth: u32) -> Driver {
        let (request, line, reply, next, heard) = (None, None, None, None, None);
        let (letter, gone, trouble, closed, under_way) = (None, None, None, None, None);
        Driver {
            inner,
            seat,
            options,
            depth,
            request,
            line,
            reply,
            next,
            heard,
            letter,
            gone,
            closed,
            under_way,
            trouble,
        }
    }

    /// From now on, `close` ends it, and waits until that is done.
    pub(crate) fn begun(mut self, under_way: UnderWay) -> Driver {
        self.closed = Some(self.inner.closing.signal());
        self.under_way = Some(under_way);
        self
    }

    /// From now on that signal ends it, instead of `close`.
    pub(crate) fn until(&mut self, closed: watch::Receiver<bool>) {
        self.closed = Some(closed);
    }

    pub(crate) fn seat(&self) -> Arc<Seat> {
        self.seat.clone()
    }

    /// From now on, the caller may give up.
    pub(crate) fn watch(&mut self, gone: watch::Receiver<bool>) {
        self.gone = Some(gone);
    }

    /// The cancellation or close that came before the caller got its grant.
    pub(crate) fn interrupted(&self) -> Option<Input> {
        let is_so =
            |signal: &Option<watch::Receiver<bool>>| signal.as_ref().is_some_and(|so| *so.borrow());
        match (is_so(&self.gone), is_so(&self.closed)) {
            (true, _) => Some(Input::Cancel),
            (false, true) => Some(Input::Close),
            (false, false) => None,
        }
    }

    /// From now on, renewals ask for this lease.
    pub(crate) fn lengthen(&mut self, lease: Ms) {
        self.options.lease = Duration::from_millis(lease);
    }

    pub(crate) fn take_line(&mut self) -> Option<Line> {
        self.line.take()
    }

    /// The reason why it was not granted, or not released.
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

    /// The result of a release.
    pub(crate) fn released(&mut self, tell: &Tell) -> Result<(), Error> {
        if *tell == Tell::Released { Ok(()) } else { Err(self.error(tell)) }
    }

    /// Drives a machine to its end, beginning with these outputs. Each result goes to `report`, which
    /// may answer with an input.
    pub(crate) async fn drive(
        &mut self,
        machine: &mut impl Machine,
        mut out: Vec<Output>,
        mut report: impl FnMut(&mut Driver, Tell, bool) -> Option<Input>,
    ) {
        let mut operation = None;
        loop {
            let (mut input, is_last) = (None, out.contains(&Output::Free));
            for output in out.drain(..) {
                match output {
                    Output::Tell(told) => {
                        self.options.on_trouble = None; // what is undone from here on is no wait
                        input = report(self, told, is_last);
                    }
                    Output::Undo => {
                        self.gone = None;
                        self.seat.is_undone.store(true, Ordering::Release);
                    }
                    Output::Free => {
                        return self.seat.is_undone.store(false, Ordering::Release);
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

    /// Carries out an output that takes no time, or begins an operation; returns whether it is an
    /// operation.
    pub(crate) fn begin(&mut self, output: &Output) -> bool {
        match output {
            Output::Keep => {
                self.reply = None;
                self.line.take().into_iter().for_each(|line| line.put());
            }
            Output::Drop => (self.reply, self.line) = (None, None),
            Output::Own { block, session, depth, .. } => {
                let depth = depth.unwrap_or(self.depth);
                let words = acquire(*block, *session, &self.seat.key, &self.options, depth);
                let words = self.telling(words, block.is_some());
                let asking = self.next.take().is_some_and(|(_, is_ask)| is_ask);
                self.line = self.line.take().filter(Line::is_usable);
                self.reply = self.line.as_ref().map(|line| line.begin(words, asking));
            }
            Output::Send(request, by) => self.request = Some(self.send(*request, *by)),
            Output::Sleep(_) => self.tell_once(),
            _ => {}
        }
        !matches!(output, Output::Keep | Output::Drop)
    }

    /// Waits for the end of an operation. The future may be dropped, and the function called again.
    pub(crate) async fn end(&mut self, operation: &Output) -> Input {
        match operation {
            Output::Open(by) => self.open(at(*by)).await,
            Output::Own { .. } if self.reply.is_none() => Input::Own(Outcome::Unsent),
            Output::Own { by, .. } => {
                let reply = or_silence(at(*by), self.reply.as_mut()).await;
                self.replied(reply)
            }
            Output::Send(_, by) | Output::Await(by) => {
                let reply = or_silence(at(*by), self.request.as_mut()).await;
                self.request = None;
                if let (Some(Err(error)), Some((node, _))) = (&reply, &self.heard) {
                    self.next = self.inner.servers.redirection(node, error);
                }
                Input::Ended(self.outcome(reply))
            }
            Output::Listen(by) => {
                let error = match timeout_at(at(*by), self.listen()).await {
                    Ok(Ok(round)) => return Input::Listening(round),
                    Ok(Err(error)) => error,
                    Err(_) => {
                        self.next = None; // the server that redirected it there may know another one by now
                        self.inner.servers.forget();
                        timed_out()
                    }
                };
                Input::Ended(self.outcome(Some(Err(error))))
            }
            Output::Wait(by) => self.wait(at(*by)).await,
            Output::Sleep(by) => {
                sleep_until(at(*by)).await;
                Input::Time
            }
            _ => std::future::pending().await,
        }
    }

    async fn open(&mut self, by: Instant) -> Input {
        let there = self.next.as_ref().map(|(node, _)| node.clone());
        let line = async {
            match there {
                Some(node) => node.line().await,
                None => self.inner.servers.locate(&self.seat.key).await?.line().await,
            }
        };
        let error = match timeout_at(by, line).await {
            Ok(Ok(line)) => {
                self.line = Some(line);
                return Input::Opened;
            }
            Ok(Err(error)) => error,
            Err(_) => timed_out(),
        };
        self.next = None; // the server that redirected it there may know another one by now
        self.inner.servers.forget();
        Input::Ended(match self.outcome(Some(Err(error))) {
            Outcome::Broken | Outcome::Silent => Outcome::Unsent,
            outcome => outcome,
        })
    }

    /// Handles the reply on the dedicated connection. `None` means silence.
    fn replied(&mut self, reply: Option<RedisResult<Value>>) -> Input {
        let reply = reply.map(|reply| reply.map_err(|error| self.inner.servers.sharded(error)));
        if reply.is_some() {
            self.reply = None;
            self.line.iter_mut().for_each(Line::hears);
        }
        if let (Some(Err(error)), Some(line)) = (&reply, &self.line) {
            self.next = self.inner.servers.redirection(&line.node, error);
            self.inner.servers.refused(&line.node, error);
            if is_broken(error) || is_no_primary(error) {
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
                    Value::SimpleString(text) if text == "WAITING" => Outcome::Waiting,
                    _ => Outcome::Token(1),
                };
            }
            Some(Err(error)) => needs_tell(error),
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
            self.options.report_trouble(trouble);
        }
    }

    // --- requests -------------------------------------------------------------------------------

    pub(crate) fn words(&self, request: Request) -> Cmd {
        words(request, &self.seat.key, &self.options, self.depth)
    }

    fn send(&mut self, request: Request, by: Ms) -> Pending {
        let words = self.words(request);
        let (words, there) = match request {
            Request::Acquire(block) => self.telling_there(words, block.is_some()),
            Request::Renew(_) => self.telling_there(words, false),
            _ => (words, None),
        };
        let (inner, seat, options) = (self.inner.clone(), self.seat.clone(), self.options.clone());
        Box::pin(async move {
            if let (Request::Info, Some(parts)) = (request, &options.parts) {
                return token_of_any(&inner, &options, parts, by).await;
            }
            let end = at(by);
            let reply = match there {
                Some((node, asking)) => {
                    inner.servers.ask_at(&node, asking, &seat.key, &words, end).await?
                }
                None => {
                    let patience = end.saturating_duration_since(Instant::now());
                    inner.servers.ask(&seat.key, &words, patience).await?
                }
            };
            match request {
                Request::Info => {
                    Ok(token_of(&reply, &options.owner, options.mode())
                        .map_or(Value::Nil, Value::Int))
                }
                _ => options.checked(request, reply),
            }
        })
    }

    // --- late replies ---------------------------------------------------------------------------

    /// Subscribes at the server of the next request; returns about how long a round trip takes.
    async fn listen(&mut self) -> RedisResult<Ms> {
        let servers = &self.inner.servers;
        let (node, asking) = match (&self.line, &self.next) {
            (Some(line), next) => (line.node.clone(), next.as_ref().is_some_and(|next| next.1)),
            (None, Some(next)) => next.clone(),
            (None, None) => (servers.locate(&self.seat.key).await?, false),
        };
        let channel = servers.channel(&self.seat.key);
        match node.listen(&channel, asking).await {
            Ok(post) => {
                let round = ms(node.round());
                self.heard = Some((node, post));
                Ok(round)
            }
            Err(error) => {
                self.next = servers.redirection(&node, &error);
                servers.refused(&node, &error);
                Err(error)
            }
        }
    }

    /// Adds `TELL` if the reply may be late, with an id that no other request has.
    fn telling(&mut self, mut words: Cmd, has_block: bool) -> Cmd {
        self.letter = None;
        if has_block || self.options.has_acks() {
            let channel = self.inner.servers.channel(&self.seat.key);
            self.letter = self.heard.as_ref().map(|(_, post)| post.letter(&channel));
            self.letter.iter().for_each(|letter| letter.add_to(&mut words, &channel));
        }
        words
    }

    /// Like `telling`, for a request on a shared connection, which goes to the server where it listens.
    fn telling_there(&mut self, words: Cmd, has_block: bool) -> (Cmd, Option<(Arc<Node>, bool)>) {
        let words = self.telling(words, has_block);
        let asking = self.next.take().is_some_and(|(_, is_ask)| is_ask);
        let there = self.heard.as_ref().map(|(node, _)| (node.clone(), asking));
        (words, there.filter(|_| self.letter.is_some()))
    }

    async fn wait(&mut self, by: Instant) -> Input {
        let Some(letter) = self.letter.as_mut() else { return Input::Lost };
        let mut ended = self.line.as_ref().map(Line::ended);
        let reply = tokio::select! {
            biased;
            reply = letter.reply() => reply,
            () = is_so(ended.as_mut()) => return Input::Own(self.outcome(Some(Err(broken())))),
            () = sleep_until(by) => return Input::Time,
        };
        self.letter = None;
        let Some(reply) = reply else { return Input::Lost };
        if let (Err(error), Some((node, _))) = (&reply, &self.heard) {
            self.next = self.inner.servers.redirection(node, error);
            self.inner.servers.refused(node, error);
        }
        Input::Message(self.outcome(Some(reply)))
    }
}

/// The reply, or silence if it does not come in time.
async fn or_silence(by: Instant, reply: Option<&mut Pending>) -> Option<RedisResult<Value>> {
    match reply {
        Some(reply) => timeout_at(by, reply).await.ok(),
        None => Some(Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into())),
    }
}

/// The token of the owner's hold. One of the locks may have ended by itself.
async fn token_of_any(
    inner: &Inner,
    options: &Options,
    parts: &[One],
    by: Ms,
) -> RedisResult<Value> {
    for one in parts {
        let words = words(Request::Info, &one.key, options, 1);
        let patience = at(by).saturating_duration_since(Instant::now());
        let info = inner.servers.ask(&one.key, &words, patience).await?;
        if let Some(token) = token_of(&info, &options.owner, one.mode()) {
            return Ok(Value::Int(token));
        }
    }
    Ok(Value::Nil)
}
