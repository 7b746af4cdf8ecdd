//! Which locks clients are sure to hold, each by its own clock. If two exclude each other, there
//! must be an excuse: something that cannot be promised. Excuses are counted.

use rlock_core::{ClientId, Mode};

use super::facts::{Bound, Fact, How};
use super::promise::Promise;
use super::promises::Promises;
use super::{Broken, Hearing, Reign, must};
use crate::client::Actor;
use crate::command::{Ask, Command};
use crate::history::History;
use crate::machines::{Machine, START_US};
use crate::printer::Printer;
use crate::seen::{Kind, Seen};
use crate::words::Said;

/// A client is sure that it has this hold.
#[derive(Clone, Debug)]
struct Belief {
    who: usize,
    client: ClientId,
    ask: Ask,
    db: i32,
    /// For how long, in microseconds of the world; a session lasts as long as its connection.
    until_us: u64,
    promise: Promise,
}

/// The holds of which clients are sure.
#[derive(Default)]
pub struct Beliefs {
    all: Vec<Belief>,
}

impl Beliefs {
    /// A client releases a hold.
    pub fn gives_up(&mut self, who: usize, db: i32, command: &Command) {
        self.all.retain(|belief| {
            let is_meant = command.releases(belief.ask.owner, belief.ask.key);
            (belief.who, belief.db) != (who, db) || !is_meant
        });
    }

    /// A client knows that its connection ended.
    pub fn disconnected(&mut self, client: ClientId) {
        self.all.retain(|belief| belief.client != client || !belief.ask.session);
    }

    /// Everything in it on which the future depends.
    pub(crate) fn print(&self, to: &mut Printer) {
        for belief in &self.all {
            to.add((belief.who, belief.client.get(), belief.ask, belief.db, belief.promise.at));
            to.moment((START_US.saturating_add(belief.until_us) / 1000).min(u64::MAX - 1));
        }
    }

    /// A client read a reply.
    #[allow(clippy::too_many_arguments, reason = "all that a judge must know")]
    pub fn heard(
        &mut self,
        hearing: &Hearing<'_>,
        actor: &Actor,
        promises: &Promises,
        reigns: &[Reign],
        clocks_differ: bool,
        machines: &[Machine],
        seen: &mut Seen,
    ) -> Result<(), Broken> {
        let Hearing { who, sent, said, .. } = hearing;
        let after = |ms: u32| sent.us + u64::from(ms) * 1000;
        match (&sent.command, said) {
            (Command::Release(..), Said::Error(line)) if line.starts_with("NOTHELD") => {
                seen.count(Kind::Overslept);
            }
            // A renewal without a mode may have renewed another hold than the client means.
            (Command::Renew(owner, key, ms, Some(reads), _), Said::Int(1)) => {
                // Nor is a promise of another primary the client's own.
                let Some(pipe) = &actor.pipe else { return Ok(()) };
                let server = &machines[pipe.node].server;
                for belief in self.all.iter_mut().filter(|belief| belief.who == *who) {
                    let ask = &belief.ask;
                    let is_meant = (belief.db, ask.owner, ask.key, ask.reads)
                        == (sent.db, *owner, *key, *reads);
                    // Nor is the promise of a hold whose key was removed and came back. What this
                    // server has reported since is a separate promise, and a separate belief.
                    let promise = promises.again(&belief.promise).unwrap_or(&belief.promise);
                    let bound = promise.bound(&server.history);
                    let is_renewed = bound.is_some_and(|bound| bound.until > server.now_ms());
                    if is_meant && is_renewed && belief.until_us > sent.us {
                        belief.until_us = belief.until_us.max(after(*ms));
                    }
                }
            }
            (Command::Acquire(ask), said) => {
                let judge = Judge { promises, reigns, clocks_differ, machines };
                self.granted(hearing, actor, *ask, said, &judge, seen)?;
            }
            // The client is already sure of its earlier holds.
            (Command::AcquireAll(ask), said) => {
                let judge = Judge { promises, reigns, clocks_differ, machines };
                ask.singles()
                    .try_for_each(|ask| self.granted(hearing, actor, ask, said, &judge, seen))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A client reads that it was granted one lock.
    fn granted(
        &mut self,
        hearing: &Hearing<'_>,
        actor: &Actor,
        ask: Ask,
        said: &Said,
        judge: &Judge<'_>,
        seen: &mut Seen,
    ) -> Result<(), Broken> {
        let Hearing { who, client, sent, us, .. } = *hearing;
        let Some(token) = said.number().filter(|token| *token > 0) else { return Ok(()) };
        let (key, owner) = (format!("k{}", ask.key), format!("o{}", ask.owner));
        let token = token.cast_unsigned();
        let promise = judge.promises.find(client, token, sent.db, key.as_bytes(), owner.as_bytes());
        // The newest token of several locks need not be that of this one.
        let is_it = |promise: &&Promise| {
            let is_mode = (promise.mode == Mode::Read) == ask.reads;
            is_mode && !actor.is_releasing(sent.db, ask.owner, ask.key)
        };
        let Some(promise) = promise.filter(is_it) else { return Ok(()) };
        let lasts_us = sent.us + u64::from(ask.lease) * 1000;
        let until_us = if ask.session { u64::MAX } else { lasts_us };
        let promise = promise.clone();
        let belief = Belief { who, client, ask, db: sent.db, until_us, promise };
        self.all.retain(|belief| belief.until_us > us);
        if until_us > us {
            judge.compare(&self.all, &belief, seen)?;
            self.all.push(belief);
        }
        Ok(())
    }
}

struct Judge<'a> {
    promises: &'a Promises,
    reigns: &'a [Reign],
    clocks_differ: bool,
    machines: &'a [Machine],
}

impl Judge<'_> {
    fn compare(&self, all: &[Belief], new: &Belief, seen: &mut Seen) -> Result<(), Broken> {
        let excludes = |old: &&Belief| {
            let is_same = (old.db, old.ask.key) == (new.db, new.ask.key);
            let writes = !old.ask.reads || !new.ask.reads;
            is_same && writes && old.ask.owner != new.ask.owner
        };
        for old in all.iter().filter(excludes) {
            let (first, second) =
                if old.promise.us <= new.promise.us { (old, new) } else { (new, old) };
            let excuse = self.excuse(first, second);
            must(excuse.is_some(), "two clients are sure of one lock", || {
                format!("{first:?} and {second:?}")
            })?;
            excuse.into_iter().for_each(|kind| seen.count(kind));
        }
        Ok(())
    }

    /// The promise in its present state: more may have happened to it since.
    fn promise<'p>(&'p self, belief: &'p Belief) -> &'p Promise {
        self.promises.again(&belief.promise).unwrap_or(&belief.promise)
    }

    /// Why the second hold was granted beside the first.
    fn excuse(&self, first: &Belief, second: &Belief) -> Option<Kind> {
        let (old, new) = (self.promise(first), self.promise(second));
        let reign = &self.reigns[usize::try_from(new.at.reign).unwrap()];
        let mut history: History = reign.before.clone();
        history.arrived(new.at);
        let clocks = self.clocks_differ.then_some(Kind::Clocks);
        let acked_clocks = self.clocks_differ.then_some(Kind::AckedClocks);
        if first.ask.session && !self.is_connected(first) {
            return Some(Kind::SessionCut);
        }
        if !history.has(old.at) {
            let is_ended = old.has_ended();
            let mut acked = old.acked.iter().filter(|acked| acked.at == old.at);
            let is_acked = acked.clone().next().is_some();
            // By then, another server was the primary.
            let is_late = is_acked && acked.all(|acked| acked.us >= reign.began_us);
            return Some(match (old.us >= reign.began_us || is_late, reign.is_restart) {
                (true, _) if is_acked => Kind::AckedPartition,
                (true, _) => Kind::Partition,
                (_, true) => Kind::LostData,
                // A confirmed hold is not lost, except for a known reason: its server was paused
                // from before the last deadline that a client got.
                _ if is_acked && first.ask.session && old.acked_until() <= new.now_ms => {
                    Kind::SessionCut
                }
                _ if is_acked && !is_ended => return old.lost,
                (_, false) => Kind::LostGrant,
            });
        }
        match old.end(&history) {
            Some(How::Taken) => return Some(Kind::Taken),
            Some(How::Forced) => return Some(Kind::Forced),
            Some(How::Disconnected) => return Some(Kind::SessionCut),
            Some(How::Released) => return Some(Kind::SharedName),
            Some(How::Expired) | None => {}
        }
        // Its server was stopped, or could not write, for longer than the lease: it closes the
        // connection as soon as it notices.
        if first.ask.session {
            return Some(Kind::SessionCut);
        }
        let is_lost = |(at, fact): &(_, Fact)| matches!(fact, Fact::Until(_)) && !history.has(*at);
        match old.bound(&history) {
            Some(Bound { cut: Some(_), .. }) => Some(Kind::Taken),
            _ if old.facts.iter().any(|(_, f)| matches!(f, Fact::Tampered(_))) => Some(Kind::Taken),
            _ if old.facts.iter().any(is_lost) => Some(Kind::LostRenewal),
            _ if !old.acked.is_empty() => acked_clocks,
            _ => clocks,
        }
    }

    fn is_connected(&self, belief: &Belief) -> bool {
        let mut up = self.machines.iter().filter(|machine| machine.is_up);
        up.any(|machine| machine.server.conns.contains_key(&belief.client))
    }
}
