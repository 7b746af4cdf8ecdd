//! What an owner holds of a key in one mode. The depth counts for the whole process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use redis::{Cmd, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::ask::{Ask, LATE, TIDYING, is_true, millis};
use crate::error::{Error, is_broken, is_not_held, is_passing, timed_out};
use crate::held::{Held, NOT_YET, SHORT, State, is_over, look_after, nurse};
use crate::servers::{Line, PATIENCE, lock};
use crate::{Hold, Inner, Options};

/// The server refuses longer leases.
const LONGEST: Duration = Duration::from_secs(7 * 86400);

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
    /// Whoever has it undoes what an attempt left.
    pub(crate) is_undone: AtomicBool,
}

/// The right to change the depth.
pub(crate) type Turn = OwnedMutexGuard<Level>;

/// An answer is missing: nobody else of this owner asks before that is made up for.
pub(crate) struct Unsure {
    /// Goes first: without the entry nobody else would find this level.
    pub(crate) level: Turn,
    pub(crate) entry: Arc<Entry>,
}

#[derive(Default)]
pub(crate) struct Level {
    depth: u32,
    held: Option<Arc<Held>>,
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
        let space = inner.space.get().cloned().unwrap_or_default();
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
        });
        entries.insert(identity, Arc::downgrade(&entry));
        entry
    }

    /// Adds a level. Runs to its end even if the caller gives up; `gone` tells it so.
    pub(crate) async fn acquire(
        self: Arc<Entry>,
        inner: Arc<Inner>,
        options: Options,
        unsure: Option<Turn>,
        mut gone: watch::Receiver<bool>,
    ) -> Result<Hold, Error> {
        let start = Instant::now();
        let end = options.wait.and_then(|wait| start.checked_add(wait));
        // Taken by another who says the same owner, or while an abandoned wait is being undone: that passes.
        let is_undone = || self.is_undone.load(Ordering::Acquire);
        let soon = start + if is_undone() { PATIENCE } else { 2 * LATE };
        let turn = if options.wait == Some(Duration::ZERO) { soon } else { end.unwrap_or(soon) };
        let is_unsure = unsure.is_some();
        let mut level = match unsure {
            Some(level) => level,
            None => tokio::select! {
                biased; // whoever does not wait is not too late for what is free
                level = self.level.clone().lock_owned() => level,
                () = sleep_until(turn), if end.is_some() => return Err(if is_undone() {
                    Error::Unavailable(timed_out()) // its earlier request is not yet undone
                } else {
                    Error::NotAcquired
                }),
                () = is_true(&mut gone) => return Err(Error::NotAcquired),
            },
        };
        self.is_undone.store(false, Ordering::Release);
        if level.held.as_ref().is_some_and(|held| !held.is_held()) {
            *level = Level::default(); // what was held is lost; its holds will say so
        }
        let depth = level.depth + 1;
        // A request that does not wait is retried if connections break.
        let end = if options.wait == Some(Duration::ZERO) {
            Some(Instant::now() + PATIENCE)
        } else {
            end
        };
        let has_line = level.held.as_ref().is_some_and(|held| lock(&held.line).is_some());
        let mut ask = Ask {
            inner: inner.clone(),
            entry: self.clone(),
            ties: options.session && !has_line,
            options,
            depth,
            end,
            sent: Instant::now(),
            is_unsure,
            is_unwanted: false,
            is_placed: false,
            session: None,
            gone,
        };
        let mut outcome = ask.run().await;
        if let (Ok(token), Some(held)) = (&outcome, &level.held)
            && *token != held.token
        {
            held.lose(); // the level below is gone, and this one is not what it was thought to be
            (ask.is_unwanted, ask.depth, outcome) = (true, 1, Err(Error::Lost));
        }
        match outcome {
            Ok(token) => {
                let asked = (ask.options, ask.depth, ask.sent, ask.session);
                let sent = ask.sent;
                let held = self.begin(&mut level, asked, token);
                look_after(&inner, (self.clone(), held.clone(), sent));
                Ok(Hold::new(inner, self.clone(), held))
            }
            Err(error) => {
                if let (Error::Lost, Some(held)) = (&error, &level.held) {
                    held.lose();
                }
                give_up(ask, level).await;
                Err(error)
            }
        }
    }

    /// Asks once, on the thread that calls. When the answer is missing, the turn is kept: nobody else of this owner asks
    /// before it is made up for.
    pub(crate) fn quickly(
        self: &Arc<Entry>,
        inner: &Arc<Inner>,
        options: &Options,
    ) -> (Option<Hold>, Option<Unsure>) {
        let Ok(mut level) = self.level.clone().try_lock_owned() else { return (None, None) };
        let is_lost = level.held.as_ref().is_some_and(|held| !held.is_held());
        if options.session || options.has_acks() || is_lost {
            return (None, None);
        }
        let (sent, depth) = (Instant::now(), level.depth + 1);
        let words = options.words(&self.key, depth);
        let Some(reply) = inner.servers.ask_quickly(&self.key, &words) else {
            return (None, None);
        };
        let is_unsure = reply.as_ref().is_err_and(is_broken);
        match reply.and_then(|reply| Ok(redis::from_redis_value::<Option<u64>>(reply)?)) {
            Ok(Some(token)) if level.held.as_ref().is_none_or(|held| held.token == token) => {
                let asked = (options.clone(), depth, sent, None);
                let held = self.begin(&mut level, asked, token);
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
            Err(_) if !is_unsure => (None, None),
            Ok(None) => (None, None),
            _ => (None, Some(Unsure { level, entry: self.clone() })),
        }
    }

    fn begin(
        &self,
        level: &mut Level,
        (options, depth, sent, session): (Options, u32, Instant, Option<Line>),
        token: u64,
    ) -> Arc<Held> {
        level.depth = depth;
        let deadline = sent + options.lease.min(LONGEST);
        if let Some(held) = &level.held {
            held.extend(deadline);
            held.revive();
            if session.is_some() {
                *lock(&held.line) = session;
            }
            return held.clone();
        }
        let held = Arc::new(Held {
            token,
            options,
            state: watch::Sender::new(State::Held),
            deadline: watch::Sender::new(deadline),
            line: Mutex::new(session),
            stop: watch::Sender::new(false),
            kept: tokio::sync::Mutex::default(),
            care: AtomicU8::new(NOT_YET),
            sleeper: Mutex::default(),
            is_left: AtomicBool::new(false),
        });
        level.held = Some(held.clone());
        held
    }

    /// Renews, with retries for as long as `patience`.
    pub(crate) async fn renew(
        &self,
        inner: &Inner,
        options: &Options,
        token: u64,
        patience: Duration,
    ) -> RedisResult<()> {
        let mut words = redis::cmd("RLOCK.RENEW");
        words.arg(&self.key).arg(&options.owner).arg(options.mode());
        words.arg("LEASE").arg(millis(options.lease)).arg("TOKEN").arg(token);
        if let Some(acks) = options.acks {
            words.arg("ACKS").arg(acks);
        }
        inner.servers.ask_on(options.lane(), &self.key, &words, patience).await.map(drop)
    }

    /// Renews every third of the lease until it is stopped or the hold is lost.
    pub(crate) async fn keep(self: Arc<Entry>, inner: Arc<Inner>, held: Arc<Held>, sent: Instant) {
        let _kept = held.kept.lock().await;
        let lease = held.options.lease;
        let soon = (lease / 30).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let (mut stop, mut state) = (held.stop.subscribe(), held.state.subscribe());
        let mut ended = lock(&held.line).as_ref().map(Line::ended);
        let mut wake = sent + lease / 3;
        loop {
            tokio::select! {
                () = is_true(&mut stop) => return,
                () = is_over(&mut state) => return,
                () = end_of(ended.as_mut()), if ended.is_some() => {} // a failover, or the end of the hold
                () = sleep_until(wake) => {}
            }
            let sent = Instant::now();
            let patience = PATIENCE.min((lease / 3).max(Duration::from_millis(50)));
            match self.renew(&inner, &held.options, held.token, patience).await {
                Ok(()) => {
                    held.extend(sent + lease);
                    wake = sent + lease / 3;
                    let is_untied = lock(&held.line).as_ref().is_some_and(Line::is_ended);
                    if is_untied && !self.tie(&inner, &held).await {
                        (ended, wake) = (None, sent + soon);
                    } else {
                        ended = lock(&held.line).as_ref().map(Line::ended);
                    }
                }
                Err(error) if is_not_held(&error) => return held.lose(),
                Err(_) => (ended, wake) = (None, Instant::now() + soon), // the deadline stands, and is watched
            }
        }
    }

    /// Ties the hold to a new connection; the old one ended with a failover.
    async fn tie(self: &Arc<Entry>, inner: &Arc<Inner>, held: &Held) -> bool {
        let Ok(level) = self.level.try_lock() else { return false }; // its depth is being changed: later
        let mut options = held.options.clone();
        options.wait = Some(Duration::ZERO);
        let mut ask = Ask {
            inner: inner.clone(),
            entry: self.clone(),
            options,
            depth: level.depth,
            end: Some(Instant::now() + PATIENCE.min(held.options.lease / 3)),
            sent: Instant::now(),
            is_unsure: false,
            is_unwanted: false,
            is_placed: false,
            session: None,
            ties: true,
            gone: watch::channel(false).1,
        };
        match ask.run().await {
            Ok(token) if token == held.token => {
                *lock(&held.line) = ask.session;
                true
            }
            Ok(_) => {
                held.lose(); // another hold: it ends with its connection, here
                false
            }
            Err(_) => false,
        }
    }

    /// Releases a level of `held`.
    pub(crate) async fn release(&self, inner: &Inner, held: &Arc<Held>) -> Result<(), Error> {
        // Another request of this owner may be under way, for longer than this hold lasts.
        let mut level = loop {
            let deadline = *held.deadline.borrow();
            match timeout_at(deadline, self.level.lock()).await {
                Ok(level) => break level,
                Err(_) if held.is_held() => {} // renewed
                Err(_) => return Err(Error::Lost),
            }
        };
        if level.depth == 0 || !level.held.as_ref().is_some_and(|now| Arc::ptr_eq(now, held)) {
            return Err(Error::Lost);
        }
        let depth = level.depth - 1;
        if depth == 0 && !held.needs_no_care() {
            held.stop.send_replace(true);
            let _ = held.kept.lock().await; // a renewal under way would come too late
        }
        let is_lost = !held.is_held();
        let outcome = self.tell_release(inner, held, depth, is_lost).await;
        Entry::end(&mut level, inner, held, &outcome);
        outcome
    }

    /// Asks once, on the calling thread. `None`: release by [`Entry::release`].
    pub(crate) fn release_quickly(
        &self,
        inner: &Inner,
        held: &Arc<Held>,
    ) -> Option<Result<(), Error>> {
        let mut level = self.level.try_lock().ok()?;
        let is_now = level.held.as_ref().is_some_and(|now| Arc::ptr_eq(now, held));
        let is_last = level.depth == 1;
        if level.depth == 0 || !is_now || !held.is_held() || (is_last && !held.needs_no_care()) {
            return None;
        }
        let words = self.release_words(held, level.depth - 1);
        let outcome = match inner.servers.ask_quickly(&self.key, &words)? {
            Ok(_) => Ok(()),
            Err(error) if is_not_held(&error) => Err(Error::Lost),
            Err(error) => {
                held.is_left.store(is_broken(&error), Ordering::Release);
                return None;
            }
        };
        Entry::end(&mut level, inner, held, &outcome);
        Some(outcome)
    }

    /// Records that a level has ended.
    fn end(level: &mut Level, inner: &Inner, held: &Arc<Held>, outcome: &Result<(), Error>) {
        level.depth -= 1;
        if level.depth == 0 {
            level.held = None;
            let line = lock(&held.line).take();
            held.state.send_if_modified(|state| {
                let is_news = *state == State::Held && outcome.is_ok();
                if is_news {
                    *state = State::Released;
                }
                is_news
            });
            match line {
                Some(line) if outcome.is_ok() => line.put(inner.most),
                _ => {} // what may still be tied to it ends with it
            }
        }
        if matches!(outcome, Err(Error::Lost)) {
            held.lose();
        }
    }

    fn release_words(&self, held: &Held, depth: u32) -> Cmd {
        let mut words = redis::cmd("RLOCK.RELEASE");
        words.arg(&self.key).arg(&held.options.owner).arg(held.options.mode());
        words.arg("TOKEN").arg(held.token).arg("DEPTH").arg(depth);
        words
    }

    async fn tell_release(
        &self,
        inner: &Inner,
        held: &Held,
        depth: u32,
        is_lost: bool,
    ) -> Result<(), Error> {
        let words = self.release_words(held, depth);
        let mut was_sent = held.is_left.load(Ordering::Acquire);
        let mut pause = Duration::from_millis(10);
        loop {
            let patience = if is_lost { TIDYING } else { PATIENCE };
            let Err(error) = inner.servers.ask(&self.key, &words, patience).await else { break };
            if is_lost {
                break;
            } else if is_not_held(&error) {
                // Was it the release whose reply was lost?
                return if was_sent && held.is_held() { Ok(()) } else { Err(Error::Lost) };
            }
            was_sent |= is_broken(&error);
            if !is_passing(&error) {
                return Err(error.into());
            } else if Instant::now() + pause > *held.deadline.borrow() {
                return Err(Error::out_of_patience(error));
            }
            sleep(pause).await;
            pause = (pause * 2).min(TIDYING);
        }
        if is_lost { Err(Error::Lost) } else { Ok(()) }
    }
}

/// Leaves nothing behind, if need be after the caller was answered. Nobody else of this owner begins before that:
/// what is undone by owner and depth would be theirs.
async fn give_up(mut ask: Ask, level: Turn) {
    ask.is_unwanted |= ask.session.is_some();
    if !ask.is_unsure && !ask.is_unwanted && !ask.is_placed {
        return;
    }
    ask.entry.is_undone.store(true, Ordering::Release);
    let undoing = tokio::spawn(async move {
        ask.undo().await;
        ask.entry.is_undone.store(false, Ordering::Release);
        drop(level);
    });
    let _ = tokio::time::timeout(LATE, undoing).await;
}

async fn end_of(ended: Option<&mut watch::Receiver<bool>>) {
    if let Some(ended) = ended {
        is_true(ended).await;
    }
}

/// Releases in the background.
pub(crate) fn release_later(
    runtime: &Handle,
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    held: Arc<Held>,
) {
    let mut last = Last(Some((inner, entry, held)));
    runtime.spawn(async move {
        if let Some((inner, entry, held)) = &last.0 {
            let _ = entry.release(inner, held).await;
        }
        drop(last.0.take());
    });
}

/// A release that its runtime, which ends, no longer does: so a hold that lives to the end of `main` is released.
struct Last(Option<(Arc<Inner>, Arc<Entry>, Arc<Held>)>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some((inner, entry, held)) = self.0.take()
            && held.is_held()
            && let Ok(mut level) = entry.level.try_lock()
            && level.held.as_ref().is_some_and(|now| Arc::ptr_eq(now, &held))
        {
            let words = entry.release_words(&held, level.depth.saturating_sub(1));
            let _ = inner.servers.ask_quickly(&entry.key, &words);
            Entry::end(&mut level, &inner, &held, &Ok(()));
        }
    }
}
