//! The laws of ACKS: as many replicas as were asked for have a confirmed grant, it survives its
//! primary, and it can confirm a session. And the law of a new primary's grace period.

use std::collections::BTreeMap;

use rlock_core::{Change, ClientId, Token};

use super::facts::{Fact, How};
use super::promise::Acked;
use super::promises::Promises;
use super::rest::Rest;
use super::{Broken, Reign, must};
use crate::history::Point;
use crate::keyspace::{Key, KeyRef, Slot};
use crate::link::Ack;
use crate::machines::Machine;
use crate::notes::{Asked, Pending};
use crate::seen::{Kind, Seen};
use crate::server::Server;

const OUTLIVES: &str = "what was acknowledged outlives its primary";

/// What is known of one primary's acknowledgments.
#[derive(Default)]
pub struct Acks {
    /// Deadlines in the order in which they were written.
    deadlines: BTreeMap<Token, Vec<(Point, u64)>>,
    /// The acknowledged deadline of each session.
    sessions: BTreeMap<(ClientId, Token), u64>,
}

/// Holds that were revoked, and their deadlines.
#[derive(Default)]
pub struct TakenBack(Vec<(i32, Key, Token, u64)>);

/// The offset in the server's stream that each counting replica has acknowledged.
fn heard(node: usize, machines: &[Machine]) -> impl Iterator<Item = Ack> {
    let links = machines.iter().filter(|machine| machine.is_up);
    links.filter_map(move |machine| machine.link.as_ref()?.counts(node))
}

/// Whether a server has this hold, with this deadline or a later one.
fn has(server: &Server, lock: KeyRef<'_>, token: Token, until: u64) -> bool {
    let lock = server.keys.get(lock.db, lock.key).and_then(Slot::lock);
    let mut holds = lock.into_iter().flat_map(|lock| lock.holds());
    holds.any(|(.., hold)| hold.token == token && hold.deadline.get() >= until)
}

/// How many other servers have it.
fn copies(node: usize, machines: &[Machine], lock: KeyRef<'_>, token: Token, until: u64) -> usize {
    let others = machines.iter().enumerate().filter(|(at, machine)| *at != node && machine.is_up);
    others.filter(|(_, machine)| has(&machine.server, lock, token, until)).count()
}

/// Law: a request with `ACKS` is refused if and only if too few replicas count.
pub fn enough(acks: u8, node: usize, machines: &[Machine], is_let_in: bool) -> Result<(), Broken> {
    let online = heard(node, machines).count();
    must(is_let_in == (online >= usize::from(acks)), "too few replicas are said at once", || {
        format!("{acks} of {online} are to acknowledge; it was let in: {is_let_in}")
    })
}

/// A waiting caller gets the confirmation of its grant or renewal.
pub fn told(
    asked: &Asked,
    pending: &Pending,
    node: usize,
    machines: &[Machine],
) -> Result<(), Broken> {
    let needed = usize::from(asked.acks.max(1));
    let count = heard(node, machines).filter(|ack| ack.has >= pending.at).count();
    must(count >= needed, "nobody is told before replicas acknowledged", || {
        format!("{count} of {needed} acknowledged {pending:?} of {asked:?}")
    })?;
    let lock = asked.key_ref();
    let count = copies(node, machines, lock, pending.token, pending.deadline);
    must(count >= needed, "what is told is on as many copies", || {
        format!("{count} of {needed} have {pending:?} of {asked:?}")
    })?;
    let stands = has(&machines[node].server, lock, pending.token, pending.deadline);
    must(stands, "what is told stands", || format!("{pending:?} of {asked:?} is over"))
}

impl Acks {
    /// A hold changed on its primary.
    pub fn changed(&mut self, at: Point, change: &Change<'_>, server: &Server, seen: &mut Seen) {
        match change {
            Change::Granted { token, deadline, .. } | Change::Updated { token, deadline, .. } => {
                self.deadlines.entry(*token).or_default().push((at, deadline.get()));
            }
            // Several locks may share one token.
            Change::Ended { token, .. } if server.holds(*token) => {}
            Change::Ended { token, .. } => {
                let written = self.deadlines.remove(token).unwrap_or_default();
                let lasts = written.iter().any(|(_, until)| *until > server.now_ms());
                let is_unacked = |((client, of), until): (&(ClientId, Token), &u64)| {
                    let is_there = server.conns.contains_key(client);
                    of == token && is_there && *until <= server.now_ms()
                };
                if lasts && self.sessions.iter().any(is_unacked) {
                    seen.count(Kind::SessionUnacknowledged);
                }
            }
        }
    }

    /// The last written deadline of a hold.
    pub fn until(&self, token: Token) -> u64 {
        let written = self.deadlines.get(&token).into_iter().flatten();
        written.map(|(_, until)| *until).max().unwrap_or(0)
    }

    /// A session was confirmed, with that deadline.
    pub fn session(&mut self, client: ClientId, token: Token, until: u64) {
        let lasts = self.sessions.entry((client, token)).or_default();
        *lasts = until.max(*lasts);
    }

    /// Prolongs sessions by what replicas have acknowledged. Called after each action of a server.
    pub fn heard(&mut self, rest: &Rest, node: usize, machines: &[Machine]) {
        for (client, token, acks) in rest.sessions_by_acks() {
            let Some(written) = self.deadlines.get(&token) else { continue };
            let is_acked = |at: &Point| {
                heard(node, machines).filter(|ack| ack.has >= *at).count() >= acks.into()
            };
            let acked = written.iter().filter(|(at, _)| is_acked(at)).map(|(_, until)| *until);
            let latest = acked.max().unwrap_or(0);
            let lasts = self.sessions.entry((client, token)).or_default();
            *lasts = latest.max(*lasts);
        }
    }

    /// Law: while a command of this connection is executed, the acknowledged deadlines of its
    /// sessions have not passed.
    pub fn runs(&self, client: ClientId, rest: &Rest, now_ms: u64) -> Result<(), Broken> {
        let own = rest.sessions_by_acks().filter(|(of, ..)| *of == client);
        for (client, token, acks) in own {
            let until = self.sessions.get(&(client, token)).copied();
            must(until.is_none_or(|until| until > now_ms), "no session runs overdue", || {
                format!("{client:?} holds {token:?}, by {acks} replicas until {until:?} only")
            })?;
        }
        Ok(())
    }

    /// Law: when the server has nothing left to do, no connection is kept by a deadline that
    /// replicas did not acknowledge.
    pub fn sessions_last(&mut self, rest: &Rest, server: &Server) -> Result<(), Broken> {
        for (client, token, acks) in rest.sessions_by_acks() {
            let until = self.sessions.get(&(client, token)).copied().unwrap_or(0);
            if until > server.now_ms() || !server.conns.contains_key(&client) {
                continue;
            }
            must(
                server.state.manager.closing.contains(client),
                "a session lasts as acknowledged",
                || format!("{client:?} holds {token:?}, by {acks} replicas until {until} only"),
            )?;
        }
        self.sessions.retain(|(client, token), _| rest.is_tied(*client, *token));
        Ok(())
    }
}

impl TakenBack {
    /// A hold ended because replicas did not acknowledge it, or because its caller did not wait for
    /// them.
    pub fn add(&mut self, lock: KeyRef<'_>, token: Token, until: u64, now_ms: u64) {
        self.0.retain(|(.., until)| *until > now_ms);
        self.0.push((lock.db, lock.key.clone(), token, until));
    }

    /// A replica is promoted: counts which of these grants it has.
    fn stand(&self, server: &Server, promises: &Promises, seen: &mut Seen) {
        for (db, key, token, until) in &self.0 {
            let is_told = promises.iter().any(|promise| promise.token == *token);
            if has(server, KeyRef { db: *db, key }, *token, 0)
                && !is_told
                && *until > server.now_ms()
            {
                seen.count(Kind::TakenBackStands);
            }
        }
    }
}

/// Law: a promoted replica has what replicas acknowledged, unless it lags behind another replica,
/// or all that acknowledged are lost or on the other side of a partition.
pub fn promoted(
    node: usize,
    machines: &[Machine],
    promises: &mut Promises,
    revoked: &TakenBack,
    seen: &mut Seen,
) -> Result<(), Broken> {
    let server = &machines[node].server;
    let now_ms = server.now_ms();
    revoked.stand(server, promises, seen);
    let others = machines.iter().enumerate().filter(|(at, other)| *at != node && other.is_up);
    let others: Vec<&Server> = others.map(|(_, other)| &other.server).collect();
    for promise in promises.iter_mut() {
        if promise.has_ended() {
            continue;
        }
        let lasts = promise.bound(&server.history).is_some_and(|bound| bound.end() > now_ms);
        let goes_on = |other: &&Server| other.is_primary && other.history.has(promise.at);
        if lasts && promise.pending == promise.told && !others.iter().any(goes_on) {
            seen.count(Kind::PendingStands);
        }
        for Acked { at, until, .. } in &promise.acked {
            let lasts = *until > now_ms;
            let is_lost = !server.history.has(*at);
            must(!is_lost || !lasts || !is_best(server, *at, &others), OUTLIVES, || {
                format!("server {node} lacks {promise:?}, until {until}, and none had more")
            })?;
            let kind = if is_lost { why_lost(*at, &others) } else { Kind::AckedSurvived };
            lasts.then(|| seen.count(kind));
            promise.lost = Some(kind).filter(|_| is_lost).or(promise.lost);
        }
    }
    Ok(())
}

/// Whether a server that lacks this effect is as far in the stream as any other that has it.
fn is_best(server: &Server, at: Point, others: &[&Server]) -> bool {
    // Offsets of two primaries' streams cannot be compared.
    let is_in_stream = |one: &Server| one.history.point().reign == at.reign;
    let has_less = |other: &&Server| {
        is_in_stream(other) && other.history.has(at) && other.offset <= server.offset
    };
    is_in_stream(server) && others.iter().any(has_less)
}

/// Why a promoted server lacks an effect that replicas acknowledged.
fn why_lost(at: Point, others: &[&Server]) -> Kind {
    let have_it = others.iter().filter(|other| other.history.has(at));
    match have_it.map(|other| other.is_primary).max() {
        Some(true) => Kind::AckedPartition,
        Some(false) => Kind::LaggardPromoted,
        None => Kind::AcknowledgersLost,
    }
}

/// Law: when a primary grants after its grace period, no lease of an earlier primary is still
/// running, whatever was lost.
pub fn grace(
    asked: &Asked,
    promises: &Promises,
    reign: &Reign,
    now_ms: u64,
    seen: &mut Seen,
) -> Result<(), Broken> {
    for promise in promises.iter() {
        let is_known = reign.before.has(promise.at);
        let ended = |fact: &Fact| matches!(fact, Fact::Ended(how) if *how != How::Expired);
        let is_told = promise.told > promise.pending && promise.us < reign.began_us;
        if !is_told
            || !promise.is_of(asked.key_ref())
            || !promise.excludes(&asked.owner, asked.mode)
            || promise.facts.iter().any(|(_, f)| ended(f) || matches!(f, Fact::Tampered(_)))
        {
            continue;
        }
        let untils = promise.facts.iter().filter_map(|(_, fact)| match fact {
            Fact::Until(until) => Some(*until),
            _ => None,
        });
        let until = untils.max().unwrap_or(0);
        must(until <= now_ms, "the grace outlasts every lease", || {
            format!("{asked:?} was granted beside {promise:?}, which lasts until {until}")
        })?;
        if !is_known && until * 1000 > crate::machines::START_US + reign.began_us {
            seen.count(Kind::Graced);
        }
    }
    Ok(())
}
