//! What the laws learn of what the engine does.

use std::borrow::Cow;

use rlock_core::{Change, ClientId, Mode, Reply, Token, WaiterId, Wake};
use rlock_engine::{Done, Happening};

use crate::host::Running;
use crate::keyspace::{Key, KeyRef, Slot, Value};
use crate::notes::{Asked, Deed, Note, Noted, Pending};
use crate::seen::Kind;
use crate::server::Server;
use crate::words::Said;

/// A copy of a change that outlives its request.
pub(crate) fn kept(change: &Change<'_>) -> Change<'static> {
    match change {
        Change::Granted { owner, mode, token, deadline } => Change::Granted {
            owner: Cow::Owned(owner.to_vec()),
            mode: *mode,
            token: *token,
            deadline: *deadline,
        },
        Change::Updated { token, depth, deadline } => {
            Change::Updated { token: *token, depth: *depth, deadline: *deadline }
        }
        Change::Ended { token, by } => Change::Ended { token: *token, by: *by },
    }
}

impl Server {
    pub(crate) fn observe(&mut self, running: &Running, happening: Happening<'_>) {
        match happening {
            Happening::Decided { at, done, .. } => {
                let Done { changes, events, reply, pending, .. } = done;
                self.note_pending();
                let (db, key): (i32, Key) = (at.db, at.key.into());
                self.begins(db, &key, changes);
                for change in changes {
                    if let Change::Granted { token, .. } = change {
                        self.begun.push(*token);
                    }
                    let (key, change, by) = (key.clone(), kept(change), running.by.clone());
                    self.note(Note::Changed { db, key, change, by });
                }
                if !changes.is_empty() {
                    self.effect_events += events.len() as u64;
                }
                pending
                    .iter()
                    .for_each(|waiter| self.pend(*waiter, KeyRef { db, key: &key }, None));
                // The caller's own; if several locks are entered, the waiter was named above.
                let is_for_several = |waiter: &WaiterId| {
                    self.waiting_of(*waiter).is_some_and(|waiting| waiting.is_for_several)
                };
                if *reply == Reply::Pending && !pending.iter().any(is_for_several) {
                    let waiting = running.client.and_then(|client| self.waiting_mut(client));
                    let waiter = waiting.map(|waiting| waiting.waiter);
                    if let Some(waiter) = self.tells.opened().or(waiter) {
                        self.pend(waiter, KeyRef { db, key: &key }, None);
                    }
                }
            }
            Happening::Replayed(events) => self.effect_events += events.len() as u64,
            Happening::Acquired(reply) => self.acquired(running, reply),
            Happening::Renewed(Reply::Renewed) => self.renewed(running),
            Happening::Answered(wake) => self.answered(running, wake),
            Happening::Unblocked(waiter, reply) => self.unconfirmed(waiter, reply),
            Happening::Waits(waiter) => self.tell_opens(running, waiter),
            Happening::Told => self.tells.told += 1,
            Happening::Untold(waiter) => self.nobody_heard(waiter),
            Happening::Deadlock => self.note(Note::Saw(Kind::Deadlock)),
            Happening::Renewed(_)
            | Happening::Turn { .. }
            | Happening::SearchGivenUp
            | Happening::GrantedSeveral
            | Happening::TooFewReplicas
            | Happening::Removed(_) => {}
        }
    }

    fn acquired(&mut self, running: &Running, reply: &Reply) {
        let (Reply::Granted { token, remaining_ms }, Some(client), Some(asked)) =
            (reply, running.asker, &running.asked)
        else {
            return;
        };
        self.deeds.push(Deed::Reply(*token));
        if running.is_for_several {
            let asks: Vec<Asked> = std::iter::once(asked).chain(&running.others).cloned().collect();
            self.granted_all(client, &asks, *token, *remaining_ms, None, &[]);
            return;
        }
        let (asked, granted_at) = (Box::new(asked.clone()), self.now);
        let (token, remaining_ms, waited, pending) = (*token, *remaining_ms, false, None);
        self.note(Note::Told { client, asked, token, granted_at, remaining_ms, waited, pending });
    }

    /// A connection gets several locks, perhaps after a wait. Returns its holds, one for each lock.
    fn granted_all(
        &mut self,
        client: ClientId,
        asks: &[Asked],
        newest: Token,
        remaining_ms: u64,
        blocked: Option<bool>,
        pending: &[(usize, Pending)],
    ) -> Vec<Token> {
        let held: Vec<Option<Token>> = asks.iter().map(|asked| self.hold_of(asked)).collect();
        self.note(Note::ToldSeveral { asks: asks.into(), held: held.clone(), newest });
        let (granted_at, waited) = (self.now, blocked.unwrap_or(false));
        self.note(Note::Saw(match blocked {
            Some(_) if !pending.is_empty() => Kind::SeveralAcknowledged,
            Some(_) => Kind::WaitedForSeveral,
            None => Kind::GrantedSeveral,
        }));
        for (place, (asked, token)) in asks.iter().zip(&held).enumerate() {
            let (Some(token), asked) = (*token, Box::new(asked.clone())) else { continue };
            let pending = pending.iter().find(|(of, _)| *of == place).map(|(_, it)| *it);
            let granted_at = pending.map_or(granted_at, |pending| pending.granted_at);
            self.note(Note::Told {
                client,
                asked,
                token,
                granted_at,
                remaining_ms,
                waited,
                pending,
            });
        }
        held.into_iter().map(|token| token.unwrap_or(newest)).collect()
    }

    /// The owner's hold, as requested. Its key may have expired because a user shortened its time
    /// to live: nobody notices before the key is next used.
    fn hold_of(&self, asked: &Asked) -> Option<Token> {
        let lock = self.keys.get(asked.db, &asked.key).and_then(Slot::lock)?;
        lock.hold_at(asked.owner.as_bytes(), asked.mode, self.now).map(|hold| hold.token)
    }

    fn renewed(&mut self, running: &Running) {
        let Some(mode) = running.renewal else { return };
        if !running.others.is_empty() {
            self.note(Note::Saw(Kind::RenewedSeveral));
        }
        for asked in running.asked.iter().chain(&running.others) {
            let Asked { db, key, owner, lease, .. } = asked.clone();
            let only = running.renews;
            self.note(Note::Renewed { db, key, owner, mode, only, lease });
        }
    }

    /// A blocked connection gets its reply, at once or in the next loop iteration.
    fn answered(&mut self, running: &Running, wake: &Wake) {
        let now = self.now;
        let Some(client) = self.asker_of(wake.waiter) else { return };
        self.note_heard(wake.waiter, &wake.reply);
        let is_told = self.tells.answered(wake, &running.words);
        if is_told && self.goes_unheard(wake.waiter) {
            return;
        }
        if let (Reply::Granted { token, .. }, false) = (&wake.reply, is_told) {
            self.deeds.push(Deed::Reply(*token));
        }
        let Some(waiting) = self.waiting_of(wake.waiter) else { return };
        match (&wake.reply, waiting.is_for_several) {
            (Reply::Granted { token, remaining_ms }, true) => {
                let asks: Vec<Asked> = waiting.asks().cloned().collect();
                let (waited, pending) =
                    (Some(wake.waited_us > 0), std::mem::take(&mut waiting.pending));
                let tokens =
                    self.granted_all(client, &asks, *token, *remaining_ms, waited, &pending);
                let waiting = self.waiting_of(wake.waiter);
                waiting.into_iter().for_each(|waiting| waiting.granted.clone_from(&tokens));
            }
            (Reply::Granted { token, remaining_ms }, false) => {
                let (asked, pending) = (Box::new(waiting.asked.clone()), waiting.pending.pop());
                let pending = pending.map(|(_, pending)| pending);
                waiting.granted = vec![*token];
                let granted_at = pending.map_or(now, |pending| pending.granted_at);
                let (token, remaining_ms, waited) = (*token, *remaining_ms, wake.waited_us > 0);
                self.note(Note::Told {
                    client,
                    asked,
                    token,
                    granted_at,
                    remaining_ms,
                    waited,
                    pending,
                });
            }
            (reply, is_for_several) => {
                if let Reply::Renewed = reply {
                    waiting.granted = waiting.pending.iter().map(|(_, it)| it.token).collect();
                }
                let notes = waiting.take_ended(reply);
                if is_for_several && notes.is_empty() {
                    self.note(Note::Saw(Kind::WaitForSeveralEnded));
                } else if is_for_several {
                    self.note(Note::Saw(Kind::SeveralUnconfirmed));
                }
                notes.into_iter().for_each(|note| self.note(note));
            }
        }
        // Nothing else answers it.
        if is_told && let Some(waiting) = self.waiting_of(wake.waiter) {
            waiting.is_answered = true;
        }
    }

    /// The grant no longer reaches this connection.
    fn unconfirmed(&mut self, waiter: WaiterId, reply: &Reply) {
        let mut all = self.conns.values_mut().filter_map(|conn| conn.waiting.as_mut());
        let Some(waiting) = all.find(|waiting| waiting.waiter == waiter) else { return };
        waiting.take_ended(reply).into_iter().for_each(|note| self.note(note));
    }

    /// What an observer must now see of WRITE at a key: the token, or 0.
    pub(crate) fn visible_token(&self, db: i32, key: &Key) -> u64 {
        let lock = self.visible(db, key).and_then(Slot::lock);
        let held = lock.and_then(|lock| lock.writer_at(self.now)).map(|(_, hold)| hold.token);
        let is_told = |token: &Token| !self.state.manager.is_pending(db, key, *token);
        held.filter(is_told).map_or(0, Token::get)
    }

    /// A blocked connection gets this reply. An observer's reply must have what it sees.
    pub(crate) fn note_shown(&mut self, client: ClientId, said: &Option<Said>) {
        let Some(waiting) = self.waiting_mut(client) else { return };
        let Some(known) = waiting.observes else { return };
        let (db, key) = (waiting.asked.db, waiting.asked.key.clone());
        if matches!(said, Some(Said::Array(_))) {
            self.note(Note::Saw(Kind::ObserverTold));
            self.note_sight(db, &key, known, said.as_ref());
        }
    }

    /// An observer that knows of this token gets this reply, or is blocked.
    pub(crate) fn note_sight(&mut self, db: i32, key: &Key, known: u64, said: Option<&Said>) {
        let shown = match said {
            Some(Said::Error(_)) => return,
            Some(said @ Said::Array(_)) => said.number().map(i64::cast_unsigned),
            _ => None,
        };
        let visible = self.visible_token(db, key);
        self.note(Note::Shown { known, shown, visible });
    }

    /// This waiting connection's hold began, and is pending. If its locks were open then, `until`
    /// is how many holds had begun by that time.
    fn pend(&mut self, waiter: WaiterId, lock: KeyRef<'_>, until: Option<usize>) {
        let (at, now) = (self.history.point(), self.now);
        let all = self.all_waiting().filter(|waiting| !waiting.is_answered);
        let Some(waiting) = all.into_iter().find(|one| one.waiter == waiter) else { return };
        let is_it = |asked: &Asked| asked.key_ref() == lock;
        let Some(place) = waiting.asks().position(is_it) else { return };
        let Some(asked) = waiting.asks().nth(place) else { return };
        let (renewal, only) = (&waiting.renewal, waiting.renews);
        if waiting.pending.iter().any(|(of, _)| *of == place) {
            return;
        }
        let slot = self.keys.get(asked.db, &asked.key);
        if until.is_none() && slot.is_none_or(|slot| slot.value == Value::Other) {
            // The request is for several locks, which are open: it is examined afterward.
            self.gated.push((waiter, lock.db, lock.key.clone(), self.begun.len()));
            return;
        }
        let asked = asked.clone();
        let mode = renewal.map_or(Some(asked.mode), |mode| mode);
        // It may have ended in the step in which it began, and the owner may have another hold.
        let (before, later) = self.begun.split_at(until.unwrap_or(self.begun.len()));
        let lock = self.keys.get(asked.db, &asked.key).and_then(Slot::lock);
        let holds = |held: Mode| {
            let mut holds = lock?
                .holds()
                .filter(|(owner, is, _)| *owner == asked.owner.as_bytes() && *is == held)
                .filter(|(.., hold)| only.is_none_or(|only| only == hold.token))
                .filter(|(.., hold)| before.contains(&hold.token) || !later.contains(&hold.token));
            holds.next().map(|(.., hold)| (held, hold))
        };
        let modes = [Mode::Write, Mode::Read].into_iter();
        let mut modes = modes.filter(|held| mode.is_none_or(|only| only == *held));
        let Some((held, hold)) = modes.find_map(holds) else { return };
        let (token, renews) = (hold.token, renewal.is_some());
        let deadline = hold.deadline.get();
        let pending = Pending { token, at, granted_at: now, deadline, renews, held, mode, only };
        self.note_heard(waiter, &Reply::Pending);
        if let Some(waiting) = self.waiting_of(waiter) {
            waiting.pending.push((place, pending));
        }
        self.pending.push(self.noted(Note::Pending { asked: Box::new(asked), pending }));
    }

    /// Notes what a decision left pending, after the waits that it ended.
    pub(crate) fn note_pending(&mut self) {
        self.notes.append(&mut self.pending);
    }

    /// Notes what was left pending while several locks were open.
    pub(crate) fn pend_gated(&mut self) {
        let gated = std::mem::take(&mut self.gated).into_iter();
        gated.for_each(|(waiter, db, key, until)| {
            self.pend(waiter, KeyRef { db, key: &key }, Some(until))
        });
        self.begun.clear();
    }

    /// Takes the notes for the laws.
    pub fn take_notes(&mut self) -> Vec<Noted> {
        self.note_pending();
        self.note_untold();
        std::mem::take(&mut self.notes)
    }
}
