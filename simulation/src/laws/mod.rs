//! What must hold after every step, judged by what clients asked and were told, and by nothing that
//! the manager says of itself but its `check()`.

mod beliefs;
mod promises;
mod replicas;
mod rest;
mod tokens;

use std::collections::BTreeSet;
use std::fmt;

use rlock_core::{Change, ClientId, End};

pub use beliefs::Beliefs;
use promises::{How, Promises};
use rest::Rest;
use tokens::TokensSeen;

use crate::client::{Actor, Sent};
use crate::history::{History, Item, Point};
use crate::notes::{By, Loss, Note, Noted};
use crate::print::Printer;
use crate::seen::{Kind, Seen};
use crate::server::{Server, Snapshot};
use crate::words::Said;
use crate::world::{Machine, Setting};

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which.
    pub law: &'static str,
    /// By what.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.law, self.what)
    }
}

/// `Err`, where this is not so.
fn must<T: FnOnce() -> String>(is_so: bool, law: &'static str, what: T) -> Result<(), Broken> {
    if is_so { Ok(()) } else { Err(Broken { law, what: what() }) }
}

/// The time of one server as primary.
pub struct Reign {
    /// What its data had when it began.
    pub before: History,
    /// It began by a start with what had been saved, and not by a promotion.
    pub is_restart: bool,
    /// When, in microseconds of the world.
    pub began_us: u64,
}

/// A reply that a client read.
pub struct Hearing<'a> {
    /// Who.
    pub who: usize,
    /// On which connection.
    pub client: ClientId,
    /// To what.
    pub sent: Sent,
    /// What.
    pub said: &'a Said,
    /// When, in microseconds of the world.
    pub us: u64,
}

/// All that is watched.
pub struct Laws {
    /// What was seen.
    pub seen: Seen,
    /// What clients are sure of.
    pub beliefs: Beliefs,
    promises: Promises,
    reigns: Vec<Reign>,
    tokens: TokensSeen,
    rest: Vec<Rest>,
    clocks_differ: bool,
}

impl Laws {
    /// Before anything happened.
    pub fn new(setting: &Setting) -> Self {
        let nodes = usize::from(setting.nodes);
        Self {
            seen: Seen::default(),
            beliefs: Beliefs::default(),
            promises: Promises::default(),
            // Nobody's.
            reigns: vec![Reign { before: History::default(), is_restart: false, began_us: 0 }],
            tokens: TokensSeen::new(nodes),
            rest: (0..nodes).map(|_| Rest::default()).collect(),
            clocks_differ: setting.clocks_ms.iter().any(|ms| *ms != 0),
        }
    }

    /// The clock of a server is stepped, which it does not know yet.
    pub fn clock_steps(&mut self, node: usize, server: &Server) {
        self.clocks_differ = true;
        self.rest[node].clock_steps(server);
    }

    /// A server becomes primary. Its number.
    pub fn reign_begins(&mut self, node: usize, server: &Server, us: u64, is_restart: bool) -> u32 {
        self.begin(node, server.history.clone(), server.now_ms(), us, is_restart)
    }

    fn begin(
        &mut self,
        node: usize,
        before: History,
        now_ms: u64,
        us: u64,
        is_restart: bool,
    ) -> u32 {
        if !is_restart {
            self.promises.taken_over(&before, now_ms, &mut self.seen);
        }
        self.tokens.reign_begins();
        self.rest[node] = Rest::default();
        self.reigns.push(Reign { before, is_restart, began_us: us });
        u32::try_from(self.reigns.len() - 1).unwrap()
    }

    /// A server starts again as a primary.
    pub fn restart(
        &mut self,
        node: usize,
        disk: Option<&Snapshot>,
        history: History,
        us: u64,
    ) -> u32 {
        self.tokens.started(node, disk.map_or(0, Snapshot::greatest_token));
        self.begin(node, history, 0, us, true)
    }

    /// A server is dead.
    pub fn died(&mut self, node: usize) {
        self.tokens.started(node, 0);
        self.rest[node] = Rest::default();
    }

    /// A replica has loaded what its primary sent.
    pub fn synced(&mut self, node: usize, snapshot: &Snapshot) {
        self.seen.count(Kind::FullSync);
        self.tokens.saw(node, snapshot.greatest_token());
    }

    /// A command of the stream arrives at a replica.
    pub fn delivered(&mut self, node: usize, item: &Item) {
        self.tokens.delivered(node, item);
    }

    /// A client read a reply.
    ///
    /// # Errors
    /// It is sure of a lock that another is sure of, and nothing excuses it.
    pub fn heard(
        &mut self,
        hearing: &Hearing<'_>,
        actor: &Actor,
        machines: &[Machine],
    ) -> Result<(), Broken> {
        let Self { beliefs, promises, reigns, seen, .. } = self;
        let clocks = self.clocks_differ;
        beliefs.heard(hearing, actor, promises, reigns, clocks, machines, seen)
    }

    /// A server did something.
    ///
    /// # Errors
    /// The law that it broke.
    pub fn after(
        &mut self,
        node: usize,
        was_shut: bool,
        us: u64,
        machines: &mut [Machine],
    ) -> Result<(), Broken> {
        let notes = std::mem::take(&mut machines[node].server.notes);
        let server = &machines[node].server;
        for noted in &notes {
            let wrote = matches!(noted.note, Note::Changed { .. });
            must(!(was_shut && wrote && server.refuses_writes()), "the gate", || {
                format!("server {node} wrote by itself what it would refuse a client: {noted:?}")
            })?;
            // FORCE, or a release under the same name, may end what this very step granted.
            let is_over = |other: &Noted| match (&noted.note, &other.note) {
                (
                    Note::Told { token: told, .. },
                    Note::Changed { change: Change::Ended { token, .. }, .. },
                ) => told == token,
                _ => false,
            };
            if !notes.iter().any(is_over) {
                self.learn(node, noted, us, server)?;
            }
        }
        for noted in &notes {
            if let Note::Told { asked, waited, token, .. } = &noted.note {
                let first = notes.iter().find_map(|other| match &other.note {
                    Note::Told { token: same, asked, .. } if same == token => Some(asked.arrival),
                    _ => None,
                });
                if first == Some(asked.arrival) {
                    let is_re_entry = self.rest[node].is_re_entry(*token);
                    rest::order(server, asked, *token, *waited, is_re_entry)?;
                }
            }
        }
        self.promises.stand(server, node)?;
        if server.is_primary && server.manager.decides() && server.is_at_rest() {
            self.rest[node].holds(server, &self.promises)?;
        }
        server.manager.check().map_err(|what| Broken { law: "the indexes agree", what })?;
        self.promises.forget_old(machines);
        Ok(())
    }

    fn learn(
        &mut self,
        node: usize,
        Noted { at, now, note }: &Noted,
        us: u64,
        server: &Server,
    ) -> Result<(), Broken> {
        let (at, history) = (*at, &server.history);
        let now_ms = now.ms().get();
        match note {
            Note::Told { client, asked, token, granted_at, waited } => {
                if *waited {
                    self.seen.count(Kind::Waited);
                }
                if asked.had_ticket {
                    self.seen.count(Kind::TicketUsed);
                }
                self.rest[node].told(*client, asked, *token);
                let until = granted_at.after(asked.lease).get();
                self.promises.told(at, asked, *client, *token, until, us, granted_at.ms().get());
                self.promises.excludes(history, asked, now_ms.min(granted_at.ms().get()))
            }
            Note::Renewed { db, key, owner, mode, lease } => {
                let until = now.after(*lease).get();
                self.promises.renewed(at, history, (*db, key), owner, *mode, until, now_ms);
                Ok(())
            }
            Note::Changed { db, key, change, by } => {
                self.changed(node, at, server, (*db, key), change, by)
            }
            Note::KeyLost { db, key, by } => {
                let how = if *by == Loss::Expiry { How::Expired } else { How::Taken };
                self.rest[node].taken(Some(*db), Some(key));
                self.promises.key_ends(at, history, Some((*db, key)), how, now_ms)
            }
            Note::Tampered { db, key, at_ms } => {
                self.promises.tampered(at, history, (*db, key), *at_ms);
                Ok(())
            }
            Note::Flushed(None) | Note::Swapped(..) => {
                self.rest[node].taken(None, None);
                self.promises.key_ends(at, history, None, How::Taken, now_ms)
            }
            Note::Flushed(Some(db)) => {
                self.rest[node].taken(Some(*db), None);
                let keys = self.promises.keys_of(*db);
                keys.iter().try_for_each(|key| {
                    self.promises.key_ends(at, history, Some((*db, key)), How::Taken, now_ms)
                })
            }
            Note::Closed(client) => {
                self.rest[node].closed(*client, &mut self.seen);
                Ok(())
            }
            Note::Unheard { asked, token } => {
                self.seen.count(Kind::TakenBack);
                self.promises.unheard((asked.db, &asked.key), *token);
                self.rest[node].unheard(asked, *token);
                Ok(())
            }
            Note::AskedSession { client, db, key, owner } => {
                self.rest[node].asked_session(*client, (*db, key), owner);
                Ok(())
            }
            Note::Saw(kind) => {
                self.seen.count(*kind);
                Ok(())
            }
        }
    }

    fn changed(
        &mut self,
        node: usize,
        at: Point,
        server: &Server,
        (db, key): (i32, &crate::keyspace::Key),
        change: &Change<'_>,
        by: &By,
    ) -> Result<(), Broken> {
        let (token, end) = match change {
            Change::Granted { token, .. } => {
                let clocks = self.clocks_differ;
                self.rest[node].granted(*token);
                return self.tokens.issued(node, at.reign, token.get(), clocks, &mut self.seen);
            }
            Change::Held { .. } => return Ok(()),
            Change::Ended { token, by } => (*token, *by),
        };
        let how = match end {
            End::Expired => How::Expired,
            End::Released => How::Released,
            End::Forced => How::Forced,
            End::Disconnected | End::Unconfirmed => How::Disconnected,
        };
        let rest = &self.rest[node];
        let owner = self.promises.owner_of(token, (db, key), &server.history).cloned();
        let is_asked = match (how, by) {
            (How::Released, By::Release(who)) => owner.as_ref().is_none_or(|owner| owner == who),
            (How::Released, _) => false,
            (How::Forced, by) => *by == By::Force,
            (How::Disconnected, _) => {
                owner.as_ref().is_none_or(|owner| rest.has_lost_session(server, (db, key), owner))
            }
            _ => true,
        };
        must(is_asked, "a hold ends by its owner, its lease, its session or an operator", || {
            format!("server {node}: {how:?} of token {token:?} of {owner:?}, in {by:?}")
        })?;
        if how == How::Released {
            self.rest[node].released((db, key), token);
        }
        self.promises.ended(at, &server.history, (db, key), token, how, server.now_ms())
    }

    /// A replica did something: if it has all that its primary had, it is the same.
    ///
    /// # Errors
    /// It is not.
    pub fn in_sync(&mut self, node: usize, machines: &[Machine]) -> Result<(), Broken> {
        if replicas::is_in_sync(node, machines) {
            self.seen.count(Kind::InSync);
            replicas::same(node, machines)?;
        }
        Ok(())
    }

    /// The tokens that something was promised with.
    pub(crate) fn tokens_of_promises(&self, to: &mut BTreeSet<u64>) {
        to.extend(self.promises.iter().map(|promise| promise.token.get()));
    }

    /// What of it everything to come depends on.
    pub(crate) fn print(&self, to: &mut Printer) {
        to.add(self.reigns.len());
        for promise in self.promises.iter() {
            promise.print(to);
        }
        self.beliefs.print(to);
    }
}
