//! The ledger of replies that are not sent: what each of these callers was granted, whether its
//! reply is under way or waits for acknowledgments, and the levels of callers that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use crate::value::count::less;
use crate::{ClientId, End, EpochMs, LeaseMs, Now, Token, WaiterId};

/// The levels that depend on whether a caller hears of its grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnLevels {
    /// So many end if it does not: the one that its grant added, and those of callers that are
    /// gone.
    pub(crate) count: u16,
    /// The depth that its grant reached; no more than is left of it.
    pub(crate) reached: u16,
    /// The depth on which it counts: levels of callers that are gone become its own, as far as the
    /// hold would be less deep without them.
    pub(crate) counts_on: u16,
}

impl OwnLevels {
    /// Of a caller that asked for `depth`, or for one level more, and whose grant took the hold
    /// from `before` levels to `reached`.
    pub(crate) fn new([before, reached]: [u16; 2], depth: Option<u16>) -> Self {
        let count = reached.saturating_sub(before);
        Self { count, reached, counts_on: depth.unwrap_or(0) }
    }
}

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
    /// Of a grant.
    pub(crate) fn grant(session: Option<ClientId>, lease: LeaseMs) -> Self {
        session.map_or(Self::Grant, |client| Self::Session(client, lease))
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
}

/// A caller without its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnsentReply {
    /// The hold.
    pub(crate) token: Token,
    pub(crate) levels: OwnLevels,
    /// The owner was told otherwise that it holds. Only the session is left open.
    pub(crate) stands: bool,
    /// The hold was tied to its connection with the grant.
    pub(crate) ties: bool,
    /// `None`: the reply is under way.
    pub(crate) ack_wait: Option<Box<AckWait>>,
}

/// The levels of a hold that are pending callers' own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PendingLevels {
    count: u16,
    /// How deep the hold is with them, as far as its callers know.
    depth: u16,
}

/// The callers of one lock whose replies are not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsentReplies {
    by_waiter: BTreeMap<WaiterId, UnsentReply>,
    by_token: BTreeSet<(Token, WaiterId)>,
    by_until: BTreeSet<(EpochMs, WaiterId)>,
    /// Of the holds with such levels.
    pending_levels: BTreeMap<Token, PendingLevels>,
    /// Sessions that begin when their grants are confirmed.
    sessions: usize,
    /// How many of `by_until` are for requests for several locks.
    of_several: usize,
    /// Levels of which nobody is going to hear, and by what they end; `None` if somebody who waits
    /// for acknowledgments has it now. They end with the next input.
    revoked: Vec<(Token, Option<End>)>,
}

impl UnsentReplies {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_waiter.is_empty() && self.revoked.is_empty()
    }

    /// Some level is to end with the next input.
    pub(crate) fn has_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    pub(crate) fn next_revoked(&mut self) -> Option<(Token, Option<End>)> {
        self.revoked.pop()
    }

    pub(crate) fn forget_revoked(&mut self) {
        self.revoked = Vec::new();
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

    /// Number of those that are of this lock alone.
    pub(crate) fn pending_alone(&self) -> usize {
        less(self.by_until.len(), self.of_several)
    }

    /// A reply is under way.
    pub(crate) fn insert(&mut self, waiter: WaiterId, token: Token, levels: OwnLevels) {
        self.put(waiter, (token, levels), None);
    }

    /// A reply waits for acknowledgments.
    pub(crate) fn insert_pending(
        &mut self,
        waiter: WaiterId,
        (token, levels): (Token, OwnLevels),
        wait: AckWait,
    ) {
        self.count_pending(token, levels);
        self.by_until.insert((wait.until, waiter));
        self.sessions = self.sessions.saturating_add(wait.begins_session().into());
        self.of_several = self.of_several.saturating_add(wait.is_of_several.into());
        self.put(waiter, (token, levels), Some(Box::new(wait)));
    }

    fn count_pending(&mut self, token: Token, levels: OwnLevels) {
        if levels.count > 0 || self.pending_levels.contains_key(&token) {
            let pending = self.pending_levels.entry(token).or_default();
            pending.count = pending.count.saturating_add(levels.count);
            pending.depth = pending.depth.max(levels.reached);
        }
    }

    fn uncount_pending(&mut self, token: Token, count: u16) {
        if let Some(pending) = self.pending_levels.get_mut(&token) {
            pending.count = pending.count.saturating_sub(count);
            if pending.count == 0 {
                self.pending_levels.remove(&token);
            }
        }
    }

    fn put(
        &mut self,
        waiter: WaiterId,
        (token, levels): (Token, OwnLevels),
        ack_wait: Option<Box<AckWait>>,
    ) {
        self.by_token.insert((token, waiter));
        let reply = UnsentReply { token, levels, stands: false, ties: false, ack_wait };
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
        let wait = *unsent.ack_wait.take()?;
        let (token, count) = (unsent.token, unsent.levels.count);
        self.forget_ack_wait((waiter, token, count), &wait);
        Some((token, wait))
    }

    fn forget_ack_wait(&mut self, (waiter, token, count): (WaiterId, Token, u16), wait: &AckWait) {
        self.uncount_pending(token, count);
        self.by_until.remove(&(wait.until, waiter));
        self.sessions = less(self.sessions, wait.begins_session().into());
        self.of_several = less(self.of_several, wait.is_of_several.into());
    }

    /// The reply to this caller is too late from another moment on.
    pub(crate) fn wait_until(&mut self, waiter: WaiterId, until: EpochMs) {
        let wait = self.by_waiter.get_mut(&waiter).and_then(|unsent| unsent.ack_wait.as_mut());
        if let Some(wait) = wait {
            self.by_until.remove(&(wait.until, waiter));
            self.by_until.insert((until, waiter));
            wait.until = until;
        }
    }

    pub(crate) fn ack_wait(&self, waiter: WaiterId) -> Option<&AckWait> {
        self.by_waiter.get(&waiter)?.ack_wait.as_deref()
    }

    /// Forgets a caller.
    pub(crate) fn remove(&mut self, waiter: WaiterId) -> Option<UnsentReply> {
        let reply = self.by_waiter.remove(&waiter)?;
        self.by_token.remove(&(reply.token, waiter));
        if let Some(wait) = &reply.ack_wait {
            self.forget_ack_wait((waiter, reply.token, reply.levels.count), wait);
        }
        Some(reply)
    }

    /// A caller is gone, and its levels end with the next input, but for those on which another
    /// caller of the same hold counts. `awaits_acks`: the hold may be pending, which then is
    /// decided anew. False if it had its reply.
    pub(crate) fn leave(&mut self, waiter: WaiterId, awaits_acks: bool) -> bool {
        let Some(UnsentReply { token, levels, ack_wait, .. }) = self.remove(waiter) else {
            return false;
        };
        if levels.count == 0 {
            return true;
        }
        let lost = self.pass_on(token, levels);
        let by = if ack_wait.is_some() { End::Unconfirmed } else { End::Disconnected };
        self.revoked.extend(iter::repeat_n((token, Some(by)), lost.into()));
        self.revoked.extend((lost == 0 && awaits_acks).then_some((token, None)));
        true
    }

    /// A level that was granted to a ticket ends with the next input, unless a caller counts on it.
    pub(crate) fn revoke_turn(&mut self, token: Token, level: u16) {
        let reached = level.saturating_sub(self.ending(token));
        if self.pass_on(token, OwnLevels { count: 1, reached, counts_on: 0 }) > 0 {
            self.revoked.push((token, Some(End::Unconfirmed)));
        }
    }

    fn of_token(&self, token: Token) -> impl DoubleEndedIterator<Item = WaiterId> {
        let all = (token, WaiterId::from(1))..=(token, WaiterId::from(u64::MAX));
        self.by_token.range(all).map(|(_, waiter)| *waiter)
    }

    /// How many acknowledgments each level of this hold needs that waits for them.
    pub(crate) fn pending_levels(&self, token: Token) -> impl Iterator<Item = u8> {
        let unsent = self.of_token(token).filter_map(|waiter| self.by_waiter.get(&waiter));
        let pending = unsent.filter_map(|it| Some((it.ack_wait.as_ref()?.acks, it.levels.count)));
        pending.flat_map(|(acks, count)| iter::repeat_n(acks, count.into()))
    }

    /// The last level of this hold that waits for acknowledgments is no longer there. False if
    /// there is none.
    pub(crate) fn end_pending_level(&mut self, token: Token) -> bool {
        let waits = |it: &UnsentReply| it.levels.count > 0 && it.ack_wait.is_some();
        let is_it = |waiter: &WaiterId| self.by_waiter.get(waiter).is_some_and(waits);
        let Some(waiter) = self.of_token(token).rev().find(is_it) else { return false };
        self.change(waiter, |levels| levels.count = levels.count.saturating_sub(1));
        self.uncount_pending(token, 1);
        true
    }

    fn change(&mut self, waiter: WaiterId, change: impl FnOnce(&mut OwnLevels)) {
        if let Some(unsent) = self.by_waiter.get_mut(&waiter) {
            change(&mut unsent.levels);
        }
    }

    /// Levels of this hold were released or revoked, and so many are left.
    pub(crate) fn lower(&mut self, token: Token, left: u16) {
        let all: Vec<WaiterId> = self.of_token(token).collect();
        for waiter in all {
            self.change(waiter, |levels| levels.reached = levels.reached.min(left));
        }
        if let Some(pending) = self.pending_levels.get_mut(&token) {
            pending.depth = pending.depth.min(left);
        }
    }

    /// The owner was told otherwise that it holds: the replies under way no longer matter, but for
    /// the sessions that they tie.
    pub(crate) fn owner_knows(&mut self, token: Token) {
        let is_under_way = |waiter: &WaiterId| self.ack_wait(*waiter).is_none();
        let told: Vec<WaiterId> = self.of_token(token).filter(is_under_way).collect();
        for waiter in told {
            match self.by_waiter.get_mut(&waiter).filter(|unsent| unsent.ties) {
                Some(unsent) => (unsent.stands, unsent.levels) = (true, OwnLevels::default()),
                None => drop(self.remove(waiter)),
            }
        }
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

    /// Forgets so many pending callers, those first whose acknowledgments would be too late first.
    /// Returns them, and since when they wait.
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

    /// Gives this caller, which is told, the levels of pending callers without which the hold would
    /// be less deep than it counts on. `turn`: the level of a ticket. True if it needs that, too.
    pub(crate) fn takes_levels(&mut self, token: Token, heir: WaiterId, turn: u16) -> bool {
        let Some(OwnLevels { reached, counts_on, .. }) = self.levels(heir) else { return false };
        let pending = self.pending_levels.get(&token).copied().unwrap_or_default();
        let depth = pending.depth.max(reached).max(turn.saturating_sub(self.ending(token)));
        let unheard = pending.count.saturating_add((turn > 0).into());
        let mut needs = counts_on.saturating_sub(depth.saturating_sub(unheard));
        let is_it = |unsent: &UnsentReply| unsent.ack_wait.is_some() && unsent.levels.count > 0;
        while needs > 0
            && let Some(other) = self.find(token, is_it)
        {
            self.change(other, |levels| levels.count = levels.count.saturating_sub(1));
            self.uncount_pending(token, 1);
            self.add_levels(heir, 1);
            needs = needs.saturating_sub(1);
        }
        needs > 0 && turn > 0
    }

    /// The first caller of this hold that matches.
    fn find(&self, token: Token, is_it: impl Fn(&UnsentReply) -> bool) -> Option<WaiterId> {
        self.of_token(token).find(|waiter| self.by_waiter.get(waiter).is_some_and(&is_it))
    }

    /// How many levels of this hold end with the next input.
    fn ending(&self, token: Token) -> u16 {
        let ending = self.revoked.iter().filter(|(of, by)| *of == token && by.is_some());
        u16::try_from(ending.count()).unwrap_or(u16::MAX)
    }

    fn levels(&self, waiter: WaiterId) -> Option<OwnLevels> {
        self.by_waiter.get(&waiter).map(|unsent| unsent.levels)
    }

    /// This caller answers for a level that nobody else is told of.
    pub(crate) fn add_level(&mut self, waiter: WaiterId) {
        self.add_levels(waiter, 1);
    }

    fn add_levels(&mut self, waiter: WaiterId, count: u16) {
        self.change(waiter, |levels| levels.count = levels.count.saturating_add(count));
        if let Some(unsent) = self.by_waiter.get(&waiter).filter(|it| it.ack_wait.is_some()) {
            let (token, reached) = (unsent.token, unsent.levels.reached);
            self.count_pending(token, OwnLevels { count, reached, counts_on: 0 });
        }
    }

    /// Passes levels on to the caller that counts on the greatest depth, as many as it needs.
    /// Returns how many are left: those end.
    fn pass_on(&mut self, token: Token, lost: OwnLevels) -> u16 {
        let with_levels = |waiter| Some((waiter, self.levels(waiter)?));
        let all = || self.of_token(token).filter_map(with_levels);
        // Levels that nobody heard of are above all others.
        let depth = all().fold(lost.reached, |depth, (_, levels)| depth.max(levels.reached));
        let stays = depth.saturating_sub(lost.count);
        let heir = all().rev().max_by_key(|(_, levels)| levels.counts_on);
        let Some((heir, levels)) = heir else { return lost.count };
        let needs = levels.counts_on.saturating_sub(stays).min(lost.count);
        self.add_levels(heir, needs);
        self.lower(token, stays.saturating_add(needs));
        lost.count.saturating_sub(needs)
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
        let is_open = |it: &UnsentReply| it.ack_wait.is_some() || it.levels.count > 0;
        let stands_open = |it: &UnsentReply| it.stands && is_open(it);
        let mut own = BTreeMap::<Token, u16>::new();
        for (_, it) in all().filter(|(_, it)| it.ack_wait.is_some() && it.levels.count > 0) {
            let count = own.entry(it.token).or_default();
            *count = count.saturating_add(it.levels.count);
        }
        let counted = self.pending_levels.iter().map(|(token, it)| (*token, it.count));
        let agree = [
            ("counts", own == counted.collect()),
            ("tokens", self.by_token == all().map(|(waiter, it)| (it.token, *waiter)).collect()),
            ("times", self.by_until == waits().map(|(waiter, it)| (it.until, waiter)).collect()),
            ("sessions", waits().filter(|(_, it)| it.begins_session()).count() == self.sessions),
            ("groups", waits().filter(|(_, it)| it.is_of_several).count() == self.of_several),
            ("levels", !all().any(|(_, it)| stands_open(it))),
        ];
        let wrong = agree.into_iter().find(|(_, agrees)| !agrees);
        wrong.map_or(Ok(()), |(what, _)| Err(format!("{what} disagree with {self:?}")))
    }
}
