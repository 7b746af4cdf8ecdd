//! What must be true after every step, judged by the requests and replies of clients. Of the
//! manager, only its own `check()` is used.

mod acks;
mod beliefs;
mod facts;
mod groups;
mod learn;
mod promise;
mod promises;
mod replicas;
mod rest;
mod several;
pub mod tells;
mod tokens;

use std::collections::BTreeSet;
use std::fmt;

use rlock_core::{Change, ClientId, Token};

use acks::{Acks, TakenBack};
pub use beliefs::Beliefs;
use promises::Promises;
use rest::Rest;
use several::Several;
use tokens::TokensSeen;

use crate::client::{Actor, Sent};
use crate::history::{History, Item};
use crate::machines::{Machine, Setting};
use crate::notes::{Asked, Note, Noted};
use crate::printer::Printer;
use crate::seen::{Kind, Seen};
use crate::server::{Server, Snapshot};
use crate::words::Said;

/// A broken law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The name of the law.
    pub law: &'static str,
    /// How it was broken.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.law, self.what)
    }
}

/// `Err` if the condition is false.
pub(crate) fn must<T: FnOnce() -> String>(
    is_so: bool,
    law: &'static str,
    what: T,
) -> Result<(), Broken> {
    if is_so { Ok(()) } else { Err(Broken { law, what: what() }) }
}

/// If this note is of a grant that began a hold: its request, its token, and whether it waited.
fn begun(note: &Note) -> Option<(&Asked, Token, bool)> {
    match note {
        Note::Told { asked, token, waited, pending: None, .. } => Some((asked, *token, *waited)),
        Note::Pending { asked, pending } if !pending.renews => Some((asked, pending.token, true)),
        _ => None,
    }
}

/// One server's time as primary.
pub struct Reign {
    /// What its data contained when it began.
    pub before: History,
    /// Whether the server began to serve after a restart from its files, and not by a promotion.
    pub is_restart: bool,
    /// Whether no lease of an earlier primary outlasts its grace period.
    pub is_graced: bool,
    /// When it began, in microseconds of the world.
    pub began_us: u64,
}

/// A reply that a client read.
pub struct Hearing<'a> {
    /// The client.
    pub who: usize,
    /// The connection.
    pub client: ClientId,
    /// The request that it answers.
    pub sent: Sent,
    /// The reply.
    pub said: &'a Said,
    /// When it was read, in microseconds of the world.
    pub us: u64,
}

/// All that is watched.
pub struct Laws {
    /// What was seen.
    pub seen: Seen,
    /// The holds of which clients are sure.
    pub beliefs: Beliefs,
    promises: Promises,
    several: Several,
    reigns: Vec<Reign>,
    tokens: TokensSeen,
    rest: Vec<Rest>,
    acks: Vec<Acks>,
    revoked: TakenBack,
    has_grace: bool,
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
            several: Several::default(),
            // Nobody's.
            reigns: vec![Reign {
                before: History::default(),
                is_restart: false,
                is_graced: false,
                began_us: 0,
            }],
            tokens: TokensSeen::new(nodes),
            rest: (0..nodes).map(|_| Rest::default()).collect(),
            acks: (0..nodes).map(|_| Acks::default()).collect(),
            revoked: TakenBack::default(),
            has_grace: setting.grace_ms > 0,
            clocks_differ: setting.clocks_ms.iter().any(|ms| *ms != 0),
        }
    }

    /// The clock of a server is set, which the server does not know yet.
    pub fn clock_steps(&mut self, node: usize, server: &Server) {
        self.clocks_differ = true;
        self.rest[node].clock_steps(server);
    }

    /// A replica is about to become a primary.
    ///
    /// # Errors
    /// The replica lacks something that it must have.
    pub fn promoted(&mut self, node: usize, machines: &[Machine]) -> Result<(), Broken> {
        let Self { promises, revoked, seen, .. } = self;
        acks::promoted(node, machines, promises, revoked, seen)
    }

    /// A server becomes a primary, beside another one or alone. Returns the number of the reign.
    pub fn reign_begins(&mut self, node: usize, server: &Server, us: u64, is_alone: bool) -> u32 {
        let before = server.history.clone();
        self.promises.taken_over(&before, server.now_ms(), &mut self.seen);
        self.several.taken_over(&before, server.now_ms(), &mut self.seen);
        self.begin(node, before, us, false, is_alone)
    }

    fn begin(
        &mut self,
        node: usize,
        before: History,
        us: u64,
        is_restart: bool,
        is_alone: bool,
    ) -> u32 {
        self.tokens.reign_begins();
        self.rest[node] = Rest::default();
        self.acks[node] = Acks::default();
        let is_graced = self.has_grace && is_alone;
        self.reigns.push(Reign { before, is_restart, is_graced, began_us: us });
        u32::try_from(self.reigns.len() - 1).unwrap()
    }

    /// A server starts again as a primary.
    pub fn restart(
        &mut self,
        node: usize,
        disk: Option<&Snapshot>,
        history: History,
        us: u64,
        is_alone: bool,
    ) -> u32 {
        self.tokens.started(node, disk.map_or(0, Snapshot::greatest_token));
        self.begin(node, history, us, true, is_alone)
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
    /// It is sure of a lock that another client is sure of, without an excuse.
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
    /// The broken law.
    pub fn after(
        &mut self,
        node: usize,
        was_shut: bool,
        us: u64,
        machines: &mut [Machine],
    ) -> Result<(), Broken> {
        let notes = machines[node].server.take_notes();
        let server = &machines[node].server;
        for (place, noted) in notes.iter().enumerate() {
            let wrote = matches!(noted.note, Note::Changed { .. });
            must(!(was_shut && wrote && server.refuses_writes()), "the gate", || {
                format!("server {node} wrote by itself what it would refuse a client: {noted:?}")
            })?;
            // FORCE, or a release under the same owner's name, may end what this very step granted.
            let is_over = |other: &Noted| match (&noted.note, &other.note) {
                (
                    Note::Told { asked, token: told, pending: None, .. },
                    Note::Changed { db, key, change: Change::Ended { token, .. }, .. },
                ) => (asked.db, &asked.key, told) == (*db, key, token),
                _ => false,
            };
            let Some(end) = notes.iter().rposition(is_over) else {
                self.learn(node, noted, us, machines)?;
                continue;
            };
            // While the hold lasted, it was this connection's session, and no other connection's
            // any more.
            if end > place
                && let Note::Told { client, asked, token, .. } = &noted.note
            {
                self.rest[node].told(*client, asked, *token, asked.acks, us);
            }
        }
        // A pending grant began later than the reported grants of the same hold.
        let is_told = |noted: &&Noted| matches!(noted.note, Note::Told { .. });
        let (told, pending): (Vec<&Noted>, Vec<&Noted>) = notes.iter().partition(is_told);
        let all: Vec<&Noted> = told.into_iter().chain(pending).collect();
        let begun = || all.iter().filter_map(|noted| begun(&noted.note));
        for (asked, token, waited) in begun().filter(|_| !server.had_longer) {
            // If the owner also had a group waiting for this lock, its single request re-enters.
            let mut same = begun().filter(|(_, same, _)| *same == token).map(|(asked, ..)| asked);
            // If the owner took the lock, its requests that waited have re-entered with that hold.
            let takes = same.clone().find(|asked| asked.takes);
            let of_several = same.clone().find(|asked| asked.of_several);
            let first = same.next().map(|first| match of_several {
                Some(other) if other.arrival < first.arrival => other,
                _ => first,
            });
            if takes.or(first).is_some_and(|first| first.arrival == asked.arrival) {
                // The owner got WRITE in this very step, and that hold may have ended since.
                let is_other = |noted: &Noted| match &noted.note {
                    Note::Changed {
                        key, change: Change::Granted { owner, token: t, .. }, ..
                    } => *key == asked.key && **owner == *asked.owner.as_bytes() && *t != token,
                    _ => false,
                };
                // A request for several locks may rely on a hold that its owner had before.
                let begins = |noted: &Noted| match &noted.note {
                    Note::Changed { key, change: Change::Granted { token: t, .. }, .. } => {
                        (key, t) == (&asked.key, &token)
                    }
                    _ => false,
                };
                let is_covered = asked.of_several && !notes.iter().any(begins);
                let rest = &self.rest[node];
                let enters = is_covered || rest.is_re_entry(token) || notes.iter().any(is_other);
                rest.order(server, asked, token, waited, enters)?;
            }
        }
        let begun: Vec<Token> = begun().map(|(_, token, _)| token).collect();
        self.rest[node].begun(&begun);
        rest::ties(server)?;
        self.promises.stand(server, node)?;
        tells::counted(server)?;
        tells::in_order(&server.deeds)?;
        self.tokens.stepped(node);
        self.several.stepped(node, server, !self.clocks_differ)?;
        self.rest[node].lines.stepped(server, &mut self.seen);
        self.acks[node].heard(&self.rest[node], node, machines);
        if server.is_primary && server.state.manager.decides() && server.is_at_rest() {
            self.rest[node].holds(server, &self.promises)?;
            self.acks[node].sessions_last(&self.rest[node], server)?;
        }
        server.state.manager.check().map_err(|what| Broken { law: "the indexes agree", what })?;
        self.promises.forget_old(machines);
        machines[node].server.deeds.clear();
        machines[node].server.had_longer = false;
        Ok(())
    }

    /// Law: a replica that has everything its primary had is equal to it.
    ///
    /// # Errors
    /// The replica differs.
    pub fn in_sync(&mut self, node: usize, machines: &[Machine]) -> Result<(), Broken> {
        if replicas::is_in_sync(node, machines) {
            self.seen.count(Kind::InSync);
            replicas::same(node, machines)?;
        }
        Ok(())
    }

    /// The tokens of all promises.
    pub(crate) fn tokens_of_promises(&self, to: &mut BTreeSet<u64>) {
        to.extend(self.promises.iter().map(|promise| promise.token.get()));
    }

    /// Everything in it on which the future depends.
    pub(crate) fn print(&self, to: &mut Printer) {
        to.add(self.reigns.len());
        self.promises.print(to);
        self.beliefs.print(to);
    }
}
