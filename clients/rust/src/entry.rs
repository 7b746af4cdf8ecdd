//! What an owner holds of a key in one mode. The depth counts for the whole process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::ask::{Ask, answer, is_true, millis};
use crate::clock::{at, ms, now};
use crate::closing::UnderWay;
use crate::error::{Error, timed_out};
use crate::held::{Held, LONGEST, NOT_YET, SHORT, State, look_after, nurse};
use crate::last::{Acquiring, Releasing};
use crate::machine::{
    self, Attempt, Come, FOREVER, Input, Level as Released, Ms, Output, Planted, Release, Stand,
    Tell,
};
use crate::node::{Line, QUICK};
use crate::servers::lock;
use crate::several::rest;
use crate::telemetry::Span;
use crate::{Hold, Inner, Options};

type Identity = (String, Vec<u8>, String, &'static str);

fn registry() -> MutexGuardOf {
    static ENTRIES: OnceLock<Mutex<HashMap<Identity, Weak<Entry>>>> = OnceLock::new();
    lock(ENTRIES.get_or_init(Mutex::default))
}

type MutexGuardOf = std::sync::MutexGuard<'static, HashMap<Identity, Weak<Entry>>>;

pub(crate) struct Entry {
    identity: Identity,
    pub(crate) key: Vec<u8>,
    /// Taken by whoever changes the depth.
    pub(crate) level: Arc<tokio::sync::Mutex<Level>>,
    /// Whoever has it undoes what a request left.
    pub(crate) is_undone: AtomicBool,
    /// Whether the caller of whoever has it has gone: that is undone as well, as soon as its task knows.
    gone: Mutex<Option<watch::Receiver<bool>>>,
}

/// The right to change the depth.
pub(crate) type Turn = OwnedMutexGuard<Level>;

#[derive(Default)]
pub(crate) struct Level {
    pub(crate) depth: u32,
    held: Option<Arc<Held>>,
}

impl Level {
    pub(crate) fn is_of(&self, held: &Arc<Held>) -> bool {
        self.held.as_ref().is_some_and(|now| Arc::ptr_eq(now, held))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut entries = registry();
        if entries.get(&self.identity).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&self.identity);
        }
    }
}

impl Entry {
    pub(crate) fn of(inner: &Inner, key: &[u8], options: &Options) -> Arc<Entry> {
        // An owner that is not named is known to nobody else, so that it does not matter where.
        let space = inner.servers.space.get().cloned().unwrap_or_default();
        let identity = (space, key.to_vec(), options.owner.clone(), options.mode());
        let mut entries = registry();
        if let Some(entry) = entries.get(&identity).and_then(Weak::upgrade) {
            return entry;
        }
        let entry = Arc::new(Entry {
            identity: identity.clone(),
            key: key.to_vec(),
            level: Arc::default(),
            is_undone: AtomicBool::new(false),
            gone: Mutex::default(),
        });
        entries.insert(identity, Arc::downgrade(&entry));
        entry
    }

    /// Adds a level. Runs to its end even if the caller gives up; `gone` tells it so.
    pub(crate) async fn acquire(
        self: Arc<Entry>,
        inner: Arc<Inner>,
        options: Options,
        begun: Option<Begun<Attempt>>,
        mut gone: watch::Receiver<bool>,
        told: oneshot::Sender<Result<Hold, Error>>,
    ) {
        let begun = match begun {
            Some(begun) => Ok(begun),
            None => self.seated(&inner, &options, &mut gone).await,
        };
        let Begun { level, machine, out, mut ask } = match begun {
            Ok(begun) => begun,
            Err(error) => return drop(told.send(Err(error))),
        };
        let mut own = Acquiring::new(inner.clone(), self.clone(), options.clone(), level, machine);
        let level = &mut own.level;
        *lock(&self.gone) = Some(gone.clone());
        ask.watch(gone);
        let (mut told, (free, left)) = (Some(told), oneshot::channel());
        let (mut left, mut granted) = (Some(left), None);
        ask.drive(&mut own.machine, out, |ask, tell, is_last| {
            if let Tell::Granted(token, sent, lingers) = tell {
                if let Some(interrupted) = ask.interrupted() {
                    return Some(interrupted);
                }
                let session = ask.take_line();
                let held = self.begin(&inner, level, &options, sent, session, (token, lingers));
                look_after(&inner, (self.clone(), held.clone(), sent));
                granted = Some(Hold::new(inner.clone(), self.clone(), held));
                return Some(Input::Taken);
            }
            if let (Tell::Lost, Some(held)) = (&tell, &level.held) {
                held.lose();
            }
            let error = Err(ask.error(&tell));
            if let Some(told) = told.take() {
                answer(told, error, left.take().filter(|_| !is_last));
            }
            None
        })
        .await;
        lock(&self.gone).take();
        own.is_over = true;
        drop((own, free));
        if let (Some(told), Some(hold)) = (told, granted) {
            drop(told.send(Ok(hold))); // one that nobody takes is released when it is dropped
        }
    }

    async fn seated(
        self: &Arc<Entry>,
        inner: &Arc<Inner>,
        options: &Options,
        gone: &mut watch::Receiver<bool>,
    ) -> Result<Begun<Attempt>, Error> {
        let start = Instant::now();
        let level = inner.closing.or_closed(self.seat(options, gone)).await??;
        let under_way = inner.closing.begin().await?;
        Ok(self.begin_attempt(inner, level, options, Some(ms(start.elapsed())), under_way))
    }

    /// The right to ask under this name.
    async fn seat(
        &self,
        options: &Options,
        gone: &mut watch::Receiver<bool>,
    ) -> Result<Turn, Error> {
        if let Ok(level) = self.level.clone().try_lock_owned() {
            return Ok(level);
        }
        let is_undone = self.is_undone.load(Ordering::Acquire)
            || lock(&self.gone).as_ref().is_some_and(|gone| *gone.borrow());
        let stand = if is_undone { Stand::Undone } else { Stand::Taken };
        let (until, tell) = match machine::come(now(), stand, options.wait_ms(), machine::PATIENCE)
        {
            Come::Wait(until, tell) => (until, tell),
            Come::Take => (FOREVER, Tell::Nil),
        };
        tokio::select! {
            biased; // nobody is too late for what is free
            level = self.level.clone().lock_owned() => Ok(level),
            () = sleep_until(at(until)) => Err(match tell {
                Tell::Unavailable => Error::Unavailable(timed_out()),
                _ => Error::NotAcquired,
            }),
            () = is_true(gone) => Err(Error::NotAcquired),
        }
    }

    fn begin_attempt(
        self: &Arc<Entry>,
        inner: &Arc<Inner>,
        mut level: Turn,
        options: &Options,
        waited: Option<Ms>,
        under_way: UnderWay,
    ) -> Begun<Attempt> {
        // A thread can ask only for what is answered at once.
        let (waited, is_quick) = (waited.unwrap_or(0), waited.is_none());
        if level.held.as_ref().is_some_and(|held| !held.is_held()) {
            *level = Level::default(); // what was held is lost; its holds will say so
        }
        let has_line = level.held.as_ref().is_some_and(|held| lock(&held.line).is_some());
        let asked = machine::Ask {
            wait: match options.wait_ms() {
                0 => 0,
                FOREVER => FOREVER,
                // One more, because the machine's time is rounded down.
                wait => wait.saturating_sub(waited).saturating_add(1),
            },
            patience: machine::PATIENCE.saturating_sub(waited).max(1),
            lease: millis(options.lease),
            depth: level.depth + 1,
            below: level.held.as_ref().map(|held| held.token),
            hears: !is_quick && inner.servers.hears(&self.key),
            session: options.session && !has_line,
            has_acks: options.has_acks(),
        };
        let mut machine = Attempt::new(asked, Planted::Nothing);
        let mut out = Vec::new();
        machine.step(now(), Input::Call, &mut out);
        let ask =
            Ask::new(inner.clone(), self.clone(), options.clone(), asked.depth).begun(under_way);
        Begun { level, machine, out, ask }
    }

    /// Asks once, on the thread that calls. Whatever else has to be done goes on from there.
    pub(crate) fn quickly(
        self: &Arc<Entry>,
        inner: &Arc<Inner>,
        options: &Options,
    ) -> (Option<Hold>, Option<Begun<Attempt>>) {
        let Ok(level) = self.level.clone().try_lock_owned() else { return (None, None) };
        let Some(under_way) = inner.closing.begin_now() else { return (None, None) };
        if options.session || options.has_acks() {
            return (None, None);
        }
        let mut begun = self.begin_attempt(inner, level, options, None, under_way);
        if !begun.ask_quickly(inner, &self.key) {
            inner.servers.prepare(&self.key);
            return (None, None);
        }
        let Some(&Output::Tell(Tell::Granted(token, sent, lingers))) = begun.out.last() else {
            return (None, Some(begun));
        };
        if begun.ask.interrupted().is_some() {
            return (None, Some(begun)); // it was closed meanwhile
        }
        let held = self.begin(inner, &mut begun.level, options, sent, None, (token, lingers));
        let newborn = (self.clone(), held.clone(), sent);
        if options.lease < SHORT {
            look_after(inner, newborn);
        } else {
            lock(&inner.newborn).push(newborn);
            if !inner.is_nursed.swap(true, Ordering::AcqRel) {
                tokio::spawn(nurse(inner.clone()));
            }
        }
        (Some(Hold::new(inner.clone(), self.clone(), held)), None)
    }

    fn begin(
        &self,
        inner: &Inner,
        level: &mut Level,
        options: &Options,
        sent: Ms,
        session: Option<Line>,
        (token, lingers): (u64, bool),
    ) -> Arc<Held> {
        level.depth += 1;
        let lease = millis(options.lease.min(LONGEST));
        let deadline = sent.saturating_add(lease);
        if let Some(held) = &level.held {
            held.extend(deadline);
            held.lease.fetch_max(lease, Ordering::AcqRel);
            held.revive();
            held.lingers.fetch_or(lingers, Ordering::AcqRel);
            if session.is_some() {
                *lock(&held.line) = session;
                inner.closing.session(held);
            }
            return held.clone();
        }
        let held = Arc::new(Held {
            token,
            options: Options { on_trouble: None, ..options.clone() }, // it waits no more
            lease: AtomicU64::new(lease),
            state: watch::Sender::new(State::Held),
            deadline: watch::Sender::new(deadline),
            line: Mutex::new(session),
            stop: watch::Sender::new(false),
            care: AtomicU8::new(NOT_YET),
            sleeper: Mutex::default(),
            lingers: AtomicBool::new(lingers),
            span: Span::new(&inner.telemetry, &self.key, options),
            is_doubted: AtomicBool::new(false),
            is_releasing: AtomicBool::new(false),
            is_observed: AtomicBool::new(false),
        });
        if lock(&held.line).is_some() {
            inner.closing.session(&held);
        }
        level.held = Some(held.clone());
        held
    }

    /// Releases a level of `held`, to the end even if the caller gives up.
    pub(crate) async fn release(
        self: &Arc<Entry>,
        inner: &Arc<Inner>,
        held: &Arc<Held>,
        begun: Option<Begun<Release>>,
    ) -> Result<(), Error> {
        let (tell, told) = oneshot::channel();
        let own = Releasing::new(inner.clone(), self.clone(), held.clone());
        tokio::spawn(self.clone().releases(begun, own, tell));
        told.await.unwrap_or(Err(Error::Lost))
    }

    async fn releases(
        self: Arc<Entry>,
        begun: Option<Begun<Release>>,
        mut own: Releasing,
        told: oneshot::Sender<Result<(), Error>>,
    ) {
        let (inner, held) = (own.inner.clone(), own.held.clone());
        let mut told = Some(told);
        let mut tell = |outcome| drop(told.take().map(|told| told.send(outcome)));
        let begun = match begun {
            Some(begun) => Some(begun),
            // Another request of this owner may be under way, for longer than this hold lasts, or than its user waits.
            None => loop {
                let deadline = *held.deadline.borrow();
                match timeout_at(at(deadline), self.level.clone().lock_owned()).await {
                    Ok(level) => match inner.closing.begin().await {
                        Ok(under_way) => break self.begin_release(&inner, level, &held, under_way),
                        Err(_) if !held.is_held() => break None,
                        Err(closed) => {
                            own.is_over = true;
                            return tell(Err(closed));
                        }
                    },
                    Err(_) if held.is_held() => tell(Err(Error::Unavailable(timed_out()))),
                    Err(_) => break None,
                }
            },
        };
        let Some(Begun { level, mut machine, out, mut ask }) = begun else {
            own.is_over = true;
            return tell(Err(Error::Lost));
        };
        let level = own.level.insert(level);
        if level.depth == 1 && !held.needs_no_care() {
            held.stop.send_replace(true);
        }
        let (free, left) = oneshot::channel();
        let (mut left, mut done) = (Some(left), None);
        ask.drive(&mut machine, out, |ask, tell, is_last| {
            let outcome = ask.released(&tell);
            Entry::end(level, &held, &outcome);
            if is_last {
                done = Some(outcome);
            } else if let Some(told) = told.take() {
                answer(told, outcome, left.take());
            }
            None
        })
        .await;
        if matches!(done, Some(Err(Error::Lost))) {
            rest(&inner, &self.key, &held.options, held.token).await;
        }
        own.is_over = true;
        drop((own, free));
        if let (Some(told), Some(outcome)) = (told, done) {
            drop(told.send(outcome));
        }
    }

    /// Nothing if `held` is not what the owner holds.
    fn begin_release(
        self: &Arc<Entry>,
        inner: &Arc<Inner>,
        level: Turn,
        held: &Arc<Held>,
        under_way: UnderWay,
    ) -> Option<Begun<Release>> {
        if level.depth == 0 || !level.is_of(held) {
            return None;
        }
        held.is_releasing.store(level.depth == 1, Ordering::Release);
        let deadline = if held.is_held() { *held.deadline.borrow() } else { 0 };
        let released = Released {
            patience: deadline.saturating_sub(now()),
            lease: held.lease.load(Ordering::Acquire),
            depth: level.depth,
            token: held.token,
            deadline,
            lingers: held.lingers.load(Ordering::Acquire),
        };
        let mut machine = Release::new(released, Planted::Nothing);
        let mut out = Vec::new();
        machine.step(now(), Input::Call, &mut out);
        let ask = Ask::new(inner.clone(), self.clone(), held.options.clone(), level.depth)
            .begun(under_way);
        Some(Begun { level, machine, out, ask })
    }

    /// Asks once, on the calling thread. Whatever else has to be done goes on from there, by [`Entry::release`].
    pub(crate) fn release_quickly(
        self: &Arc<Entry>,
        inner: &Arc<Inner>,
        held: &Arc<Held>,
    ) -> (Option<Result<(), Error>>, Option<Begun<Release>>) {
        if held.options.parts.is_some() {
            return (None, None); // if one was lost, there is more to do
        }
        let Ok(level) = self.level.clone().try_lock_owned() else { return (None, None) };
        if level.depth == 1 && !held.needs_no_care() {
            return (None, None);
        }
        let Some(under_way) = inner.closing.begin_now() else { return (None, None) };
        let Some(mut begun) = self.begin_release(inner, level, held, under_way) else {
            return (None, None);
        };
        if !begun.ask_quickly(inner, &self.key) {
            return (None, None);
        }
        let [Output::Tell(tell), Output::Free] = begun.out.as_slice() else {
            return (None, Some(begun));
        };
        let outcome = begun.ask.released(tell);
        Entry::end(&mut begun.level, held, &outcome);
        (Some(outcome), None)
    }

    /// Records that a level has ended.
    pub(crate) fn end(level: &mut Level, held: &Arc<Held>, outcome: &Result<(), Error>) {
        level.depth -= 1;
        if matches!(outcome, Err(Error::Lost)) {
            held.lose();
        }
        if level.depth == 0 {
            level.held = None;
            let line = lock(&held.line).take();
            held.state.send_if_modified(|state| {
                let is_news = *state == State::Held;
                if is_news {
                    *state = State::Released;
                    held.span.ended(false);
                }
                is_news
            });
            match line {
                Some(line) if outcome.is_ok() => line.put(),
                _ => {} // what may still be tied to it ends with it
            }
        }
    }
}

/// A request of an owner that has its seat, and what has to be done next.
pub(crate) struct Begun<M> {
    /// Goes first: without the entry nobody else would find this level.
    level: Turn,
    machine: M,
    out: Vec<Output>,
    ask: Ask,
}

impl<M: machine::Machine> Begun<M> {
    pub(crate) fn entry(&self) -> Arc<Entry> {
        self.ask.entry()
    }

    /// Does the first request on the calling thread. False if there is nothing that a thread can do by itself.
    fn ask_quickly(&mut self, inner: &Inner, key: &[u8]) -> bool {
        let Some(&Output::Send(request, by)) = self.out.first() else { return false };
        if by < now().saturating_add(ms(QUICK)) {
            return false; // without an answer, it would be late
        }
        let words = self.ask.words(request);
        let Some(reply) = inner.servers.ask_quickly(key, &words) else { return false };
        let outcome = self.ask.outcome(Some(reply));
        self.out.clear();
        self.machine.step(now(), Input::Ended(outcome), &mut self.out);
        true
    }
}

/// Releases in the background. A runtime that has ended drops the task at once, which then does it here.
pub(crate) fn release_later(
    runtime: &Handle,
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    held: Arc<Held>,
) {
    let own = Releasing::new(inner, entry.clone(), held);
    let (tell, _) = oneshot::channel(); // nobody waits for it
    runtime.spawn(entry.releases(None, own, tell));
}
