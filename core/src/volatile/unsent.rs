//! The ledger of replies that are not sent: what each of these callers was granted, whether its
//! reply is under way or waits for acknowledgments, and the levels of departed callers.

use std::collections::{BTreeMap, BTreeSet};

use crate::value::count::less;
use crate::volatile::levels::{Asked, Fate, LevelRequests};
use crate::volatile::sessions::Session;
use crate::{ClientId, End, EpochMs, LeaseMs, Now, Token, WaiterId};

/// The reply that acknowledgments hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// A renewal's.
    Renewal,
    /// A grant's.
    Grant,
    /// A grant's; with it the hold is tied to this connection, renewed by this lease.
    Session(ClientId, LeaseMs),
}

impl HeldBack {
    /// The reply to a grant.
    pub(crate) fn grant(session: Option<ClientId>, lease: LeaseMs) -> Self {
        session.map_or(Self::Grant, |client| Self::Session(client, lease))
    }

    /// The session that begins with the reply.
    pub(crate) fn session(self, now: Now) -> Option<Session> {
        match self {
            Self::Session(client, lease) => Some(Session::new(client, lease, now)),
            Self::Renewal | Self::Grant => None,
        }
    }
}

/// What holds back a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckWait {
    /// How many replicas must acknowledge it.
    pub(crate) acks: u8,
    /// No later than this.
    pub(crate) until: EpochMs,
    /// The deadline in the reply.
    pub(crate) deadline: EpochMs,
    /// When the caller began to wait, for the lock or for acknowledgments.
    pub(crate) since: Now,
    /// When it was granted.
    pub(crate) granted_at: Now,
    /// What is held back.
    pub(crate) reply: HeldBack,
    /// The request is for several locks: the replicas are asked once for all of them.
    pub(crate) is_of_several: bool,
}

impl AckWait {
    const fn begins_session(&self) -> bool {
        matches!(self.reply, HeldBack::Session(..))
    }

    /// What is to become of a request whose reply this holds back.
    fn fate(wait: Option<&Self>) -> Fate {
        wait.map_or(Fate::Told, |wait| Fate::Pending(wait.acks))
    }
}

/// A caller without its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnsentReply {
    /// The hold.
    pub(crate) token: Token,
    /// Its request for levels; `None` if another reply has said that the owner holds. Then only
    /// the session is left open.
    pub(crate) request: Option<u64>,
    /// The hold was tied to its connection with the grant.
    pub(crate) ties: bool,
    /// `None`: the reply is under way.
    pub(crate) ack_wait: Option<Box<AckWait>>,
}

/// The callers of one lock whose replies are not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsentReplies {
    by_waiter: BTreeMap<WaiterId, UnsentReply>,
    by_until: BTreeSet<(EpochMs, WaiterId)>,
    /// What they asked for.
    pub(crate) levels: LevelRequests,
    /// Sessions that begin when their grants are confirmed.
    sessions: usize,
    /// How many of `by_until` are for requests for several locks.
    of_several: usize,
    /// The holds of revoked requests, and by what the levels end that only these added. They end
    /// with the next input.
    revoked: BTreeMap<Token, End>,
}

impl UnsentReplies {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_waiter.is_empty() && self.revoked.is_empty()
    }

    /// Some request is to be left out with the next input.
    pub(crate) fn has_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// A hold of revoked requests, which are left out now; by how many levels it is less deep
    /// without them, and by what these end.
    pub(crate) fn next_revoked(&mut self) -> Option<(Token, u16, End)> {
        let (token, by) = self.revoked.pop_first()?;
        Some((token, self.levels.drop_revoked(token), by))
    }

    pub(crate) fn forget_revoked(&mut self) {
        while self.next_revoked().is_some() {}
    }

    pub(crate) fn knows(&self, waiter: WaiterId) -> bool {
        self.by_waiter.contains_key(&waiter)
    }

    /// Number of sessions that begin when their grants are confirmed.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions
    }

    /// Number of grants that wait for acknowledgments.
    pub(crate) fn pending(&self) -> usize {
        self.by_until.len()
    }

    /// Number of those whose request is for this lock alone.
    pub(crate) fn pending_alone(&self) -> usize {
        less(self.by_until.len(), self.of_several)
    }

    /// A reply is under way, or waits for acknowledgments.
    pub(crate) fn insert(
        &mut self,
        waiter: WaiterId,
        token: Token,
        asked: Asked,
        ack_wait: Option<AckWait>,
    ) {
        if let Some(wait) = &ack_wait {
            self.by_until.insert((wait.until, waiter));
            self.sessions = self.sessions.saturating_add(wait.begins_session().into());
            self.of_several = self.of_several.saturating_add(wait.is_of_several.into());
        }
        let fate = AckWait::fate(ack_wait.as_ref());
        let request = Some(self.levels.insert(token, waiter, asked, fate));
        let reply = UnsentReply { token, request, ties: false, ack_wait: ack_wait.map(Box::new) };
        let before = self.by_waiter.insert(waiter, reply);
        debug_assert!(before.is_none(), "{waiter:?} gets two replies");
    }

    /// The hold of this caller is tied to its connection.
    pub(crate) fn ties(&mut self, waiter: WaiterId) {
        if let Some(reply) = self.by_waiter.get_mut(&waiter) {
            reply.ties = true;
        }
    }

    /// The hold of this caller is tied to its connection no longer. Returns the hold, if it was.
    pub(crate) fn ties_no_more(&mut self, waiter: WaiterId) -> Option<Token> {
        let reply = self.by_waiter.get_mut(&waiter)?;
        std::mem::take(&mut reply.ties).then_some(reply.token)
    }

    /// The reply may be sent. Returns the hold, and what held the reply back.
    pub(crate) fn open(&mut self, waiter: WaiterId) -> Option<(Token, AckWait)> {
        let unsent = self.by_waiter.get_mut(&waiter)?;
        let (wait, token) = (*unsent.ack_wait.take()?, unsent.token);
        if let Some(number) = unsent.request {
            self.levels.set_fate(token, number, Fate::Told);
        }
        self.forget_ack_wait(waiter, &wait);
        Some((token, wait))
    }

    fn forget_ack_wait(&mut self, waiter: WaiterId, wait: &AckWait) {
        self.by_until.remove(&(wait.until, waiter));
        self.sessions = less(self.sessions, wait.begins_session().into());
        self.of_several = less(self.of_several, wait.is_of_several.into());
    }

    pub(crate) fn ack_wait(&self, waiter: WaiterId) -> Option<&AckWait> {
        self.by_waiter.get(&waiter)?.ack_wait.as_deref()
    }

    /// This caller has its reply: what it was granted is its owner's own.
    pub(crate) fn heard(&mut self, waiter: WaiterId) -> Option<UnsentReply> {
        let reply = self.take(waiter)?;
        if let Some(number) = reply.request {
            self.levels.stands(reply.token, number);
        }
        Some(reply)
    }

    fn take(&mut self, waiter: WaiterId) -> Option<UnsentReply> {
        let reply = self.by_waiter.remove(&waiter)?;
        if let Some(wait) = &reply.ack_wait {
            self.forget_ack_wait(waiter, wait);
        }
        Some(reply)
    }

    /// Forgets a caller; nothing of its hold is to end.
    fn remove(&mut self, waiter: WaiterId) {
        if let Some(UnsentReply { token, request: Some(number), .. }) = self.take(waiter) {
            self.levels.remove(token, number);
        }
    }

    /// A caller departed: the next input ends the levels that only its request added. False if it
    /// had its reply.
    pub(crate) fn leave(&mut self, waiter: WaiterId) -> bool {
        let Some(UnsentReply { token, request, ack_wait, .. }) = self.take(waiter) else {
            return false;
        };
        let Some(number) = request else { return true };
        let by = if ack_wait.is_some() { End::Unconfirmed } else { End::Disconnected };
        self.levels.set_fate(token, number, Fate::Revoked);
        self.revoked.insert(token, by);
        true
    }

    /// Another reply has said that the owner holds: the replies under way no longer matter, but
    /// for the sessions that they tie.
    pub(crate) fn owner_knows(&mut self, token: Token) {
        let told = self.levels.of(token).filter(|(_, it)| it.fate == Fate::Told);
        let told: Vec<_> = told.map(|(number, it)| (number, it.waiter)).collect();
        for (number, waiter) in told {
            self.levels.stands(token, number);
            match self.by_waiter.get_mut(&waiter).filter(|unsent| unsent.ties) {
                Some(unsent) => unsent.request = None,
                None => drop(self.by_waiter.remove(&waiter)),
            }
        }
    }

    /// The key was removed with its holds, so no level of them ends here any more. Another lock
    /// that comes to this name may have a hold with the same token, because one grant of several
    /// locks has one token.
    pub(crate) fn key_left(&mut self) {
        self.forget_revoked();
        for reply in self.by_waiter.values_mut().filter(|reply| reply.ack_wait.is_none()) {
            if let Some(number) = reply.request.take() {
                self.levels.remove(reply.token, number);
            }
        }
    }

    fn of_token(&self, token: Token) -> impl Iterator<Item = WaiterId> {
        self.levels.of(token).map(|(_, it)| it.waiter)
    }

    /// The hold has ended. Returns its pending callers, and since when they wait.
    pub(crate) fn remove_pending(&mut self, token: Token) -> Vec<(WaiterId, Now)> {
        let pending = |waiter: WaiterId| Some((waiter, self.ack_wait(waiter)?.since));
        let pending: Vec<(WaiterId, Now)> = self.of_token(token).filter_map(pending).collect();
        for (waiter, _) in &pending {
            self.remove(*waiter);
        }
        pending
    }

    /// Whether the deadline of this hold, as its pending callers asked for it, is still to come.
    pub(crate) fn lasts(&self, token: Token, now: Now) -> bool {
        let mut waits = self.of_token(token).filter_map(|waiter| self.ack_wait(waiter));
        waits.any(|wait| !wait.deadline.is_over_at(now))
    }

    /// Forgets up to `most` pending callers, earliest acknowledgment deadline first. Returns them,
    /// and since when they wait.
    pub(crate) fn take_pending(&mut self, most: usize) -> Vec<(WaiterId, Now)> {
        let first = self.by_until.iter().take(most);
        let pending =
            first.filter_map(|(_, waiter)| Some((*waiter, self.ack_wait(*waiter)?.since)));
        let pending: Vec<(WaiterId, Now)> = pending.collect();
        for (waiter, _) in &pending {
            self.remove(*waiter);
        }
        pending
    }

    /// The holds for which callers wait for acknowledgments.
    pub(crate) fn pending_tokens(&self) -> BTreeSet<Token> {
        let pending = self.by_until.iter().filter_map(|(_, waiter)| self.by_waiter.get(waiter));
        pending.map(|unsent| unsent.token).collect()
    }

    /// A caller whose acknowledgments did not come in time, and since when it waits.
    pub(crate) fn first_over(&self, now: Now) -> Option<(WaiterId, Now)> {
        let (until, waiter) = self.by_until.first()?;
        let since = self.ack_wait(*waiter)?.since;
        until.is_over_at(now).then_some((*waiter, since))
    }

    /// When the next acknowledgments are too late.
    pub(crate) fn next_over(&self) -> Option<EpochMs> {
        self.by_until.first().map(|(until, _)| *until)
    }

    /// The hold of this caller, if it was tied to its connection with the grant.
    pub(crate) fn tied_by(&self, waiter: WaiterId) -> Option<Token> {
        self.by_waiter.get(&waiter).filter(|unsent| unsent.ties).map(|unsent| unsent.token)
    }

    /// Checks that the indexes agree with the replies.
    ///
    /// # Errors
    /// The index that does not, for tests.
    pub(crate) fn check(&self) -> Result<(), String> {
        let all = || self.by_waiter.iter();
        let waits = || all().filter_map(|(waiter, it)| Some((*waiter, it.ack_wait.as_deref()?)));
        let request = |waiter: WaiterId, it: &UnsentReply| {
            let found = self.levels.get(it.token, it.request?)?;
            Some(found.waiter == waiter && found.fate == AckWait::fate(it.ack_wait.as_deref()))
        };
        let requests = all().filter(|(_, it)| it.request.is_some()).count();
        let revoked = self.levels.revoked();
        let agree = [
            ("requests", requests.saturating_add(revoked.len()) == self.levels.len()),
            ("revoked", self.revoked.keys().eq(&revoked.into_iter().collect::<BTreeSet<_>>())),
            ("levels", all().all(|(waiter, it)| request(*waiter, it) != Some(false))),
            ("pending", all().all(|(_, it)| it.ack_wait.is_none() || it.request.is_some())),
            ("times", self.by_until == waits().map(|(waiter, it)| (it.until, waiter)).collect()),
            ("sessions", waits().filter(|(_, it)| it.begins_session()).count() == self.sessions),
            ("groups", waits().filter(|(_, it)| it.is_of_several).count() == self.of_several),
        ];
        let wrong = agree.into_iter().find(|(_, agrees)| !agrees);
        wrong.map_or(Ok(()), |(what, _)| Err(format!("{what} disagree with {self:?}")))
    }
}
