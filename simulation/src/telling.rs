//! What a server does for requests that wait for a message, and for their subscribers.

use std::rc::Rc;

use rlock_core::{Change, ClientId, Kind as Standing, Reply, Token, WaiterId, snapshot};

use crate::fault::Fault;
use crate::host::Running;
use crate::keyspace::Key;
use crate::notes::{Asked, Deed, Note};
use crate::seen::Kind;
use crate::server::Server;
use crate::tell::{Tell, Tells, To, Why};
use crate::waiting::Waiting;
use crate::words::{Message, Out, Outcome};

/// The token of a hold that this change begins.
fn begun_by(change: &Change<'_>) -> Option<Token> {
    if let Change::Granted { token, .. } = change { Some(*token) } else { None }
}

impl Server {
    /// Whether a connection of this server has subscribed to this channel.
    pub fn has_subscriber(&self, channel: &[u8]) -> bool {
        self.conns.values().any(|conn| conn.channels.contains(channel))
    }

    /// Whether a message of this user would reach somebody.
    pub fn is_heard(&self, user: &Rc<str>, channel: &[u8]) -> bool {
        self.has_subscriber(channel) && !self.muted.contains(user)
    }

    /// All waits, blocked or for a message.
    pub fn all_waiting(&self) -> impl Iterator<Item = &Waiting> {
        let blocked = self.conns.values().filter_map(|conn| conn.waiting.as_ref());
        blocked.chain(self.tells.all.values().map(|tell| &tell.waiting))
    }

    /// A wait without a reply so far, blocked or for a message.
    pub(crate) fn waiting_of(&mut self, waiter: WaiterId) -> Option<&mut Waiting> {
        let is_it = |waiting: &&mut Waiting| waiting.waiter == waiter && !waiting.is_answered;
        let blocked = self.conns.values_mut().filter_map(|conn| conn.waiting.as_mut());
        let told = self.tells.all.values_mut().map(|tell| &mut tell.waiting);
        blocked.chain(told).find(is_it)
    }

    /// The connection that is blocked, or that asked for the message.
    pub(crate) fn asker_of(&self, waiter: WaiterId) -> Option<ClientId> {
        let told = self.tells.all.get(&waiter).filter(|tell| !tell.waiting.is_answered);
        told.map(|tell| tell.client).or_else(|| self.client_of(waiter))
    }

    /// The running command's request waits for a message, and replaces the request with this
    /// number.
    pub(crate) fn tell_opens(&mut self, running: &Running, waiter: WaiterId) {
        let (Some(client), Some(asked), Some(to)) =
            (running.asker, running.asked.clone(), running.tell.clone())
        else {
            return;
        };
        let most = self.bounds.max_tell_ms;
        let ms = running.block_ms.filter(|ms| *ms > 0).map_or(most, |ms| ms.min(most));
        let ends_at = self.now.after_ms(ms).get();
        let user = self.conns.get(&client).map_or_else(|| "".into(), |conn| conn.user.clone());
        let mut waiting = Waiting::new(waiter, running, Asked { ends_at: Some(ends_at), ..asked });
        if running.observes.is_some() {
            // The request that it replaced has another number.
            let old = self.tells.of(&to);
            old.into_iter().for_each(|old| drop(self.tells.all.remove(&old)));
        }
        if let Some(old) = self.tells.all.remove(&waiter) {
            self.note(Note::Saw(Kind::AskedAgain));
            waiting.takes_place(old.waiting);
        }
        self.tells.opened = Some(waiter);
        let (reply, is_in_line, is_withdrawn) = (None, false, false);
        let tell = Tell { waiting, client, user, to, reply, is_in_line, is_withdrawn };
        let is_forgotten = self.fault == Fault::WaitReplicated;
        if is_forgotten {
            let words: Vec<&[u8]> = running.words.iter().map(Vec::as_slice).collect();
            self.propagate(running.db, &words);
        }
        self.tells.all.insert(waiter, tell);
    }

    /// The running command has got its reply.
    pub(crate) fn tell_opened(&mut self, caller: Option<ClientId>, is_waiting: bool) {
        if let Some(waiter) = self.tells.opened.take() {
            if !is_waiting {
                self.tells.all.remove(&waiter);
                return;
            }
            let is_in_line = self.stands(waiter);
            if let Some(tell) = self.tells.all.get_mut(&waiter) {
                tell.is_in_line = is_in_line;
            }
            if self.in_longer {
                self.note(Note::Saw(Kind::WaitsInLonger));
            }
            return self.replaces(waiter);
        }
        // This command may have blocked it.
        let waiting = caller.and_then(|client| self.waiting_mut(client));
        let waiter = waiting.map(|waiting| waiting.waiter);
        waiter.into_iter().for_each(|waiter| self.replaces(waiter));
    }

    /// Whether it has a place in a line.
    fn stands(&self, waiter: WaiterId) -> bool {
        let Some(tell) = self.tells.all.get(&waiter) else { return false };
        tell.waiting.asks().any(|asked| {
            let volatile = self.state.manager.volatile(asked.db, &asked.key);
            let kinds = [Standing::Told(waiter), Standing::Group(waiter)];
            volatile.is_some_and(|it| it.queue.iter().any(|(entry, _)| kinds.contains(&entry.kind)))
        })
    }

    /// Removes other requests of the same owner and user for the same locks, which this one
    /// replaced.
    fn replaces(&mut self, waiter: WaiterId) {
        let Some(one) = self.all_waiting().find(|one| one.waiter == waiter) else { return };
        let asker = self.conns.iter().find(|(_, conn)| {
            conn.waiting.as_ref().is_some_and(|waiting| waiting.waiter == waiter)
        });
        let told = self.tells.all.get(&waiter).map(|tell| tell.user.clone());
        let Some(user) = told.or_else(|| asker.map(|(_, conn)| conn.user.clone())) else { return };
        let is_same = |(other, tell): &(&WaiterId, &Tell)| {
            // After a demotion, the wait has ended before its message is sent.
            let has_end = self.state.manager.due_message(**other).is_some();
            let waits = !tell.waiting.is_answered && !tell.is_withdrawn && !has_end;
            **other != waiter && tell.user == user && waits && tell.waiting.is_as(one)
        };
        let same = self.tells.all.iter().find(is_same).map(|(other, _)| *other);
        let Some(other) = same else { return };
        if self.state.manager.is_told(other) {
            // A request without BLOCK that is blocked only for acknowledgments replaces nothing: it
            // waits beside the other one.
            if !self.tells.all.contains_key(&waiter) {
                return;
            }
            let what = format!("{:?} beside {one:?}", self.tells.all[&other]);
            return self.note(Note::Wrong { law: "who asks again takes its place", what });
        }
        let Some(mut old) = self.tells.all.remove(&other) else { return };
        // It may have ended in this very command, because nobody listened, before it was replaced.
        self.tells.unsure += u64::from(!self.is_heard(&old.user, &old.to.channel));
        self.note(Note::Saw(Kind::AskedAgainPending));
        old.waiting.take_unconfirmed().into_iter().for_each(|note| self.note(note));
    }

    /// Whether a message that is sent now would reach no subscriber.
    pub(crate) fn goes_unheard(&mut self, waiter: WaiterId) -> bool {
        let is_heard = |tell: &Tell| self.is_heard(&tell.user, &tell.to.channel);
        if self.in_longer || self.tells.all.get(&waiter).is_some_and(is_heard) {
            return false;
        }
        let Some(tell) = self.tells.all.get_mut(&waiter) else { return false };
        tell.waiting.is_answered = true;
        let notes = tell.waiting.take_unconfirmed();
        notes.into_iter().for_each(|note| self.note(note));
        true
    }

    /// Nobody listened when its message was due: from now on, the grant in it may be revoked.
    pub(crate) fn nobody_heard(&mut self, waiter: WaiterId) {
        self.tells.untold += 1;
        let tell = self.tells.all.get_mut(&waiter);
        let notes = tell.map(|tell| tell.waiting.take_unheard()).unwrap_or_default();
        notes.into_iter().for_each(|note| self.note(note));
    }

    /// A result was decided for a request in line: somebody must listen.
    pub(crate) fn note_heard(&mut self, waiter: WaiterId, reply: &Reply) {
        let Some(tell) = self.tells.all.get(&waiter).filter(|tell| tell.is_in_line) else { return };
        let is_grant = matches!(reply, Reply::Granted { .. } | Reply::Pending);
        if is_grant
            && tell.waiting.pending.is_empty()
            && !self.is_heard(&tell.user, &tell.to.channel)
        {
            let what = format!("{reply:?} to {tell:?}");
            self.note(Note::Wrong { law: "nothing is granted to who does not listen", what });
        }
    }

    /// A message leaves.
    pub(crate) fn publish(&mut self, channel: &[u8], text: &[u8]) -> bool {
        let message = Message { channel: channel.to_vec(), text: text.to_vec() };
        if self.fault == Fault::MessageLeftOut && text.len().is_multiple_of(3) {
            return true;
        }
        let is_heard = self.has_subscriber(channel);
        let asks = self.fault != Fault::Engine(rlock_engine::PlantedFault::ListenersNotAsked);
        if !is_heard && asks {
            return false;
        }
        self.tells.sent += 1;
        self.note_message(&message);
        let all = self.conns.iter().filter(|(_, conn)| conn.channels.contains(channel));
        let all: Vec<ClientId> = all.map(|(client, _)| *client).collect();
        for client in all {
            self.out.push((client, Out::Message(message.clone())));
        }
        is_heard
    }

    fn note_message(&mut self, message: &Message) {
        let wrong = |law, what| Note::Wrong { law, what };
        if self.in_longer {
            let what = format!("{message:?} leaves in the midst of something");
            self.note(wrong("a message leaves after what is longer", what));
        }
        let Some((id, outcome)) = message.parts() else {
            self.note(wrong("a message has its form", format!("{message:?}")));
            return;
        };
        let to = To { channel: message.channel.clone(), id: id.to_vec() };
        let Some(waiter) = self.tells.of(&to) else {
            self.note(wrong("exactly one message", format!("{message:?} has no request")));
            return;
        };
        let Some(mut tell) = self.tells.all.remove(&waiter) else { return };
        if tell.is_withdrawn {
            let what = format!("{message:?} of {tell:?}");
            self.note(wrong("what is withdrawn has no message", what));
        }
        if !self.is_heard(&tell.user, &to.channel) {
            self.note(wrong("what nobody hears is not sent", format!("{message:?} of {tell:?}")));
        }
        if let Outcome::Token(token, _) = outcome
            && let Some(token) = Token::new(token.cast_unsigned())
        {
            self.deeds.push(Deed::Message(token));
        }
        self.note_sight_of(&tell, &outcome);
        if !matches!(outcome, Outcome::Token(..) | Outcome::Renewed) {
            tell.waiting.take_unconfirmed().into_iter().for_each(|note| self.note(note));
            tell.waiting.take_unheard().into_iter().for_each(|note| self.note(note));
        }
        self.note(Note::Message { tell: Box::new(tell), outcome });
    }

    /// Effects are replicated.
    pub(crate) fn hands(&mut self, effects: &[u8], count: usize) {
        if self.tells.all.is_empty() {
            return;
        }
        let effects = snapshot::load_effects(effects, count).unwrap_or_default();
        let changes = effects.iter().flat_map(|effect| &effect.changes);
        self.deeds.push(Deed::Effects(changes.filter_map(begun_by).collect()));
    }

    /// A decision was made.
    pub(crate) fn begins(&mut self, db: i32, key: &Key, changes: &[Change<'_>]) {
        let tokens: Vec<Token> = changes.iter().filter_map(begun_by).collect();
        if !self.tells.all.is_empty() && !tokens.is_empty() {
            self.deeds.push(Deed::Began(db, key.clone(), tokens));
        }
    }

    /// Notes what an observer gets.
    fn note_sight_of(&mut self, tell: &Tell, outcome: &Outcome) {
        let (Some(known), Outcome::Holder(..)) = (tell.waiting.observes, outcome) else { return };
        let (db, key) = (tell.waiting.asked.db, tell.waiting.asked.key.clone());
        self.note_sight(db, &key, known, Some(&outcome.said()));
    }

    /// Notes requests that ended in this step without a message, and why.
    pub(crate) fn note_untold(&mut self) {
        let manager = &self.state.manager;
        let is_gone = |waiter: &WaiterId| !manager.is_told(*waiter);
        let gone: Vec<WaiterId> = self.tells.all.keys().copied().filter(is_gone).collect();
        let (mut unheard, mut unsure) = (0, std::mem::take(&mut self.tells.unsure));
        for waiter in gone {
            let Some(mut tell) = self.tells.all.remove(&waiter) else { continue };
            let is_closed = tell.waiting.asked.session
                && (!self.conns.contains_key(&tell.client)
                    || self.state.manager.closing.contains(tell.client));
            let why = if tell.is_withdrawn {
                Some(Why::Withdrawn)
            } else if is_closed {
                Some(Why::Closed)
            } else if !self.is_heard(&tell.user, &tell.to.channel) {
                Some(Why::Unheard)
            } else {
                None
            };
            match why {
                Some(Why::Unheard) => unheard += 1,
                Some(_) if !self.is_heard(&tell.user, &tell.to.channel) => unsure += 1,
                _ => {}
            }
            tell.waiting.take_unconfirmed().into_iter().for_each(|note| self.note(note));
            tell.waiting.take_unheard().into_iter().for_each(|note| self.note(note));
            self.note(Note::TellEnded { tell: Box::new(tell), why });
        }
        let Tells { told, sent, untold, .. } = self.tells;
        let is_so = told == sent && (unheard..=unheard + unsure).contains(&untold);
        if !is_so {
            let what = format!("{told} of {sent} are told, {untold} of {unheard} (+{unsure}) not");
            self.note(Note::Wrong { law: "messages are counted", what });
        }
        (self.tells.told, self.tells.sent, self.tells.untold) = (0, 0, 0);
    }
}
