//! What the laws learn from a server's notes.

use rlock_core::{Change, ClientId, End};

use super::facts::{How, Renewal};
use super::promises::Grant;
use super::{Broken, Laws, acks, must, several, tells};
use crate::history::{History, Point};
use crate::keyspace::KeyRef;
use crate::machines::Machine;
use crate::notes::{Asked, By, Loss, Note, Noted, Pending};
use crate::seen::Kind;
use crate::server::Server;

impl Laws {
    pub(super) fn learn(
        &mut self,
        node: usize,
        Noted { at, now, note }: &Noted,
        us: u64,
        machines: &[Machine],
    ) -> Result<(), Broken> {
        let server = &machines[node].server;
        let (at, history) = (*at, &server.history);
        let now_ms = now.ms().get();
        match note {
            Note::Told { pending: Some(pending), client, asked, .. } => {
                if asked.of_several {
                    self.several.acked(pending.token);
                }
                self.told_acked(node, *client, asked, pending, us, machines)
            }
            Note::Told { client, asked, token, granted_at, waited, pending: None, .. } => {
                if *waited {
                    self.seen.count(Kind::Waited);
                }
                if asked.had_ticket {
                    self.seen.count(Kind::TicketUsed);
                }
                must(asked.acks == 0, "nobody is told before replicas acknowledged", || {
                    format!("{asked:?} was told at once")
                })?;
                self.rest[node].told(*client, asked, *token, asked.acks, us);
                let (until, granted_ms) =
                    (granted_at.after(asked.lease).get(), granted_at.ms().get());
                let grant = Grant { at, token: *token, until, us, now_ms: granted_ms };
                self.granted(asked, Some(*client), grant, history, now_ms.min(granted_ms))
            }
            Note::Pending { asked, pending } => {
                let Pending { token, granted_at, renews, mode, only, .. } = *pending;
                let until = granted_at.after(asked.lease).get();
                if renews {
                    let renewal =
                        Renewal { owner: &asked.owner, mode, only, until, is_told: false };
                    self.promises.renewed(at, history, asked.key_ref(), renewal, now_ms);
                    let asked = Asked { mode: pending.held, ..Asked::clone(asked) };
                    self.promises.told(&asked, None, Grant { at, token, until, us, now_ms });
                    return Ok(());
                }
                let grant = Grant { at, token, until, us, now_ms };
                self.granted(asked, None, grant, history, now_ms)
            }
            Note::Shown { known, shown, visible } => {
                must(*shown != Some(*known), "nobody is told the token that it knows", || {
                    format!("{known} is told again")
                })?;
                must(shown.unwrap_or(*known) == *visible, "what is shown is true", || {
                    format!("{shown:?} is shown to who knows {known}, and it is {visible}")
                })
            }
            Note::RenewalTold { asked, pending } => {
                acks::told(asked, pending, node, machines)?;
                self.seen.count(Kind::Acknowledged);
                self.promises.is_told_to(None, asked, pending, us);
                Ok(())
            }
            Note::Unconfirmed { asked, pending, waiter } => {
                self.seen.count(Kind::NotAcknowledged);
                self.promises.unheard(asked, pending.token, pending.at, true);
                if !pending.renews {
                    self.rest[node].unheard(asked, pending.token, Some(*waiter));
                }
                Ok(())
            }
            Note::NilWhilePending { asked } => {
                must(false, "who is pending gets no nil", || format!("nil to {asked:?}"))
            }
            Note::AskedAcks { acks, is_let_in } => {
                if !is_let_in {
                    self.seen.count(Kind::TooFewToAcknowledge);
                }
                acks::enough(*acks, node, machines, *is_let_in)
            }
            Note::ToldSeveral { asks, held, newest } => several::all_held(asks, held, *newest),
            Note::Renewed { db, key, owner, mode, only, lease } => {
                let (lock, until) = (KeyRef { db: *db, key }, now.after(*lease).get());
                let renewal = Renewal { owner, mode: *mode, only: *only, until, is_told: true };
                self.promises.renewed(at, history, lock, renewal, now_ms);
                self.rest[node].renewed(server, lock, owner, *only);
                Ok(())
            }
            Note::Changed { db, key, change, by } => {
                self.changed(node, at, server, KeyRef { db: *db, key }, change, by)?;
                self.acks[node].changed(at, change, server, &mut self.seen);
                Ok(())
            }
            Note::KeyLost { db, key, by } => {
                self.several.ended(at, Some(*db), Some(key), None);
                let how = if *by == Loss::Expiry { How::Expired } else { How::Taken };
                self.rest[node].taken(Some(*db), Some(key));
                self.promises.key_ends(at, history, Some(KeyRef { db: *db, key }), how, now_ms)
            }
            Note::Tampered { db, key, at_ms } => {
                self.several.ended(at, Some(*db), Some(key), None);
                self.promises.tampered(at, history, KeyRef { db: *db, key }, *at_ms);
                Ok(())
            }
            Note::Flushed(None) | Note::Swapped(..) => {
                self.several.ended(at, None, None, None);
                self.rest[node].taken(None, None);
                self.promises.key_ends(at, history, None, How::Taken, now_ms)
            }
            Note::Flushed(Some(db)) => {
                self.several.ended(at, Some(*db), None, None);
                self.rest[node].taken(Some(*db), None);
                let keys = self.promises.keys_of(*db);
                keys.iter().try_for_each(|key| {
                    self.promises.key_ends(
                        at,
                        history,
                        Some(KeyRef { db: *db, key }),
                        How::Taken,
                        now_ms,
                    )
                })
            }
            Note::Ran(client) => self.acks[node].runs(*client, &self.rest[node], now_ms),
            Note::Closed(client) => {
                self.rest[node].closed(*client, &mut self.seen);
                Ok(())
            }
            Note::Unheard { asked, token } => {
                self.seen.count(Kind::TakenBack);
                self.promises.unheard(asked, *token, at, false);
                self.rest[node].unheard(asked, *token, None);
                Ok(())
            }
            Note::AskedSession { client, db, key, owner } => {
                self.rest[node].asked_session(*client, KeyRef { db: *db, key }, owner);
                Ok(())
            }
            Note::Message { tell, outcome } => tells::told(tell, outcome, &mut self.seen),
            Note::TellEnded { tell, why } => tells::ended(tell, *why, &mut self.seen),
            Note::Wrong { law, what } => must(false, law, || what.clone()),
            Note::Saw(kind) => {
                self.seen.count(*kind);
                Ok(())
            }
        }
    }

    /// A hold began, whether or not its owner knows of it.
    fn granted(
        &mut self,
        asked: &Asked,
        client: Option<ClientId>,
        grant: Grant,
        history: &History,
        now_ms: u64,
    ) -> Result<(), Broken> {
        let reign = &self.reigns[usize::try_from(grant.at.reign).unwrap()];
        if reign.is_graced && !self.clocks_differ {
            acks::grace(asked, &self.promises, reign, now_ms, &mut self.seen)?;
        }
        self.promises.told(asked, client, grant);
        self.promises.excludes(history, asked, now_ms)
    }

    /// A waiting caller gets its grant, which replicas have acknowledged.
    fn told_acked(
        &mut self,
        node: usize,
        client: ClientId,
        asked: &Asked,
        pending: &Pending,
        us: u64,
        machines: &[Machine],
    ) -> Result<(), Broken> {
        self.seen.count(Kind::Acknowledged);
        let token = pending.token;
        acks::told(asked, pending, node, machines)?;
        self.promises.is_told_to(Some(client), asked, pending, us);
        let needed = asked.acks.max(1);
        self.rest[node].told(client, asked, token, needed, us);
        self.acks[node].session(client, token, pending.deadline);
        Ok(())
    }

    fn changed(
        &mut self,
        node: usize,
        at: Point,
        server: &Server,
        lock: KeyRef<'_>,
        change: &Change<'_>,
        by: &By,
    ) -> Result<(), Broken> {
        let (token, end) = match change {
            Change::Granted { token, deadline, .. } => {
                let clocks = self.clocks_differ;
                self.rest[node].granted(lock, *token);
                self.several.granted(at, lock, *token, deadline.get())?;
                let (name, token) = (lock.name(), token.get());
                return self.tokens.issued(node, at.reign, name, token, clocks, &mut self.seen);
            }
            Change::Updated { token, .. } => {
                if matches!(by, By::Release(_)) {
                    self.promises.released(lock, *token, at);
                }
                return Ok(());
            }
            Change::Ended { token, by } => (*token, *by),
        };
        self.several.ended(at, Some(lock.db), Some(lock.key), Some(token));
        if end == End::Unconfirmed {
            let until = self.acks[node].until(token);
            self.revoked.add(lock, token, until, server.now_ms());
        }
        let how = match end {
            End::Expired => How::Expired,
            End::Released => How::Released,
            End::Forced => How::Forced,
            End::Disconnected | End::Unconfirmed => How::Disconnected,
        };
        let is_told = end == End::Unconfirmed && self.promises.is_heard(token, lock, at.reign);
        must(!is_told, "what was told is not taken back", || {
            format!("server {node}: {token:?} of {lock:?}, in {by:?}")
        })?;
        let rest = &self.rest[node];
        let owner = self.promises.owner_of(token, lock, &server.history).cloned();
        let is_asked = match (how, by) {
            (How::Released, By::Release(who)) => owner.as_ref().is_none_or(|owner| owner == who),
            (How::Released, _) => false,
            (How::Forced, by) => *by == By::Force,
            (How::Disconnected, _) if end == End::Disconnected => {
                let is_lost = |owner| rest.has_lost_session(server, lock, owner);
                rest.is_unheard(lock, token) || owner.as_ref().is_none_or(is_lost)
            }
            _ => true,
        };
        must(is_asked, "a hold ends by its owner, its lease, its session or an operator", || {
            format!("server {node}: {how:?} of token {token:?} of {owner:?}, in {by:?}")
        })?;
        // The level that was reported may be released, and the other one revoked.
        if how == How::Released || end == End::Unconfirmed {
            self.rest[node].released(lock, token);
        }
        self.promises.ended(at, &server.history, lock, token, how, server.now_ms())
    }
}
