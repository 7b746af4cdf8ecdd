//! Grants whose caller has no reply yet: the reply is under way, or waits for acknowledgements.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ClientId, EpochMs, LeaseMs, Now, Token, WaiterId};

/// The hold that was granted, and whether the grant added a level to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) adds: bool,
}

/// What holds back the reply to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckWait {
    /// How many replicas must acknowledge it.
    pub(crate) acks: u8,
    /// No later than this.
    pub(crate) until: EpochMs,
    /// The deadline in the reply.
    pub(crate) deadline: EpochMs,
    /// When the caller began to wait, for the lock or for acknowledgements.
    pub(crate) since: Now,
    /// When it was granted.
    pub(crate) granted_at: Now,
    /// The connection to which to tie the hold once it is confirmed.
    pub(crate) session: Option<(ClientId, LeaseMs)>,
    /// Whether it is a renewal rather than a grant.
    pub(crate) is_renewal: bool,
}

/// A caller without the reply to its grant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnsentReply {
    grant: Grant,
    /// `None`: the reply is under way.
    gate: Option<Box<AckWait>>,
}

/// The grants of one lock whose callers have no reply yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsentReplies {
    by_waiter: BTreeMap<WaiterId, UnsentReply>,
    by_token: BTreeSet<(Token, WaiterId)>,
    by_until: BTreeSet<(EpochMs, WaiterId)>,
    /// Sessions that begin when their grants are confirmed.
    sessions: usize,
}

impl UnsentReplies {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_waiter.is_empty()
    }

    pub(crate) fn knows(&self, waiter: WaiterId) -> bool {
        self.by_waiter.contains_key(&waiter)
    }

    /// Number of sessions that begin when their grants are confirmed.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions
    }

    /// Number of grants that wait for acknowledgements.
    pub(crate) fn gated(&self) -> usize {
        self.by_until.len()
    }

    pub(crate) fn insert(&mut self, waiter: WaiterId, grant: Grant) {
        self.by_waiter.insert(waiter, UnsentReply { grant, gate: None });
        self.by_token.insert((grant.token, waiter));
    }

    pub(crate) fn insert_gated(&mut self, waiter: WaiterId, grant: Grant, gate: AckWait) {
        self.insert(waiter, grant);
        self.by_until.insert((gate.until, waiter));
        self.sessions = self.sessions.saturating_add(gate.session.is_some().into());
        if let Some(untold) = self.by_waiter.get_mut(&waiter) {
            untold.gate = Some(Box::new(gate));
        }
    }

    /// The reply may be sent. Returns the grant, and what held the reply back.
    pub(crate) fn open(&mut self, waiter: WaiterId) -> Option<(Grant, AckWait)> {
        let untold = self.by_waiter.get_mut(&waiter)?;
        let gate = *untold.gate.take()?;
        let grant = untold.grant;
        self.forget_gate(waiter, &gate);
        Some((grant, gate))
    }

    fn forget_gate(&mut self, waiter: WaiterId, gate: &AckWait) {
        self.by_until.remove(&(gate.until, waiter));
        self.sessions = self.sessions.saturating_sub(gate.session.is_some().into());
    }

    pub(crate) fn gate(&self, waiter: WaiterId) -> Option<&AckWait> {
        self.by_waiter.get(&waiter)?.gate.as_deref()
    }

    /// Forgets a caller. Returns its grant, and what held the reply back.
    pub(crate) fn remove(&mut self, waiter: WaiterId) -> Option<(Grant, Option<AckWait>)> {
        let UnsentReply { grant, gate } = self.by_waiter.remove(&waiter)?;
        self.by_token.remove(&(grant.token, waiter));
        if let Some(gate) = &gate {
            self.forget_gate(waiter, gate);
        }
        Some((grant, gate.map(|gate| *gate)))
    }

    fn of_token(&self, token: Token) -> impl Iterator<Item = WaiterId> {
        let all = (token, WaiterId::from(1))..=(token, WaiterId::from(u64::MAX));
        self.by_token.range(all).map(|(_, waiter)| *waiter)
    }

    /// How many acknowledgements each level of this hold needs that waits for them.
    pub(crate) fn gated_levels(&self, token: Token) -> impl Iterator<Item = u8> {
        let untold = self.of_token(token).filter_map(|waiter| self.by_waiter.get(&waiter));
        untold.filter(|untold| untold.grant.adds).filter_map(|it| Some(it.gate.as_ref()?.acks))
    }

    /// A level of this hold that waits for acknowledgements is no longer there. False if there is
    /// none.
    pub(crate) fn end_gated_level(&mut self, token: Token) -> bool {
        let waits = |untold: &UnsentReply| untold.grant.adds && untold.gate.is_some();
        let waiter = self.find(token, waits);
        waiter.is_some_and(|waiter| self.set_adds(waiter, false))
    }

    /// A caller of this hold of which that is so.
    fn find(&self, token: Token, is_it: impl Fn(&UnsentReply) -> bool) -> Option<WaiterId> {
        self.of_token(token).find(|waiter| self.by_waiter.get(waiter).is_some_and(&is_it))
    }

    /// Whether this caller answers for a level from now on. False if it is not known.
    fn set_adds(&mut self, waiter: WaiterId, adds: bool) -> bool {
        let untold = self.by_waiter.get_mut(&waiter);
        untold.map(|untold| untold.grant.adds = adds).is_some()
    }

    /// The replies under way no longer matter: the owner was told otherwise.
    pub(crate) fn remove_token(&mut self, token: Token) {
        let on_the_way = |waiter: &WaiterId| self.gate(*waiter).is_none();
        let told: Vec<WaiterId> = self.of_token(token).filter(on_the_way).collect();
        for waiter in told {
            self.remove(waiter);
        }
    }

    /// The hold has ended. Returns its pending callers, and since when they wait.
    pub(crate) fn remove_gated(&mut self, token: Token) -> Vec<(WaiterId, Now)> {
        let gated = |waiter: WaiterId| Some((waiter, self.gate(waiter)?.since));
        let gated: Vec<(WaiterId, Now)> = self.of_token(token).filter_map(gated).collect();
        for (waiter, _) in &gated {
            self.remove(*waiter);
        }
        gated
    }

    /// Whether the deadline of this hold, as its pending callers asked for it, is still to come.
    pub(crate) fn lasts(&self, token: Token, now: Now) -> bool {
        let mut gates = self.of_token(token).filter_map(|waiter| self.gate(waiter));
        gates.any(|gate| !gate.deadline.is_over_at(now))
    }

    /// Forgets so many pending callers, those first whose acknowledgements would be too late first.
    /// Returns them, and since when they wait.
    pub(crate) fn take_gated(&mut self, most: usize) -> Vec<(WaiterId, Now)> {
        let first = self.by_until.iter().take(most);
        let gated = first.filter_map(|(_, waiter)| Some((*waiter, self.gate(*waiter)?.since)));
        let gated: Vec<(WaiterId, Now)> = gated.collect();
        for (waiter, _) in &gated {
            self.remove(*waiter);
        }
        gated
    }

    /// The holds for which callers wait for acknowledgements.
    pub(crate) fn gated_tokens(&self) -> BTreeSet<Token> {
        let gated = self.by_until.iter().filter_map(|(_, waiter)| self.by_waiter.get(waiter));
        gated.map(|untold| untold.grant.token).collect()
    }

    /// A caller whose acknowledgements did not come in time, and since when it waits.
    pub(crate) fn first_over(&self, now: Now) -> Option<(WaiterId, Now)> {
        let (until, waiter) = self.by_until.first()?;
        let since = self.gate(*waiter)?.since;
        until.is_over_at(now).then_some((*waiter, since))
    }

    /// When the next acknowledgements are too late.
    pub(crate) fn next_over(&self) -> Option<EpochMs> {
        self.by_until.first().map(|(until, _)| *until)
    }

    /// Gives this caller the level of another one that has no reply yet. False if there is none.
    pub(crate) fn take_level(&mut self, token: Token, heir: WaiterId) -> bool {
        let Some(other) = self.find(token, |untold| untold.grant.adds) else { return false };
        self.set_adds(other, false);
        self.set_adds(heir, true);
        true
    }

    /// This caller answers for a level that nobody else is told of.
    pub(crate) fn add_level(&mut self, waiter: WaiterId) {
        self.set_adds(waiter, true);
    }

    /// Passes a level on to another caller that re-entered this hold without adding one. False if
    /// there is none.
    pub(crate) fn pass_on(&mut self, token: Token) -> bool {
        let heir = self.find(token, |untold| !untold.grant.adds);
        heir.is_some_and(|heir| self.set_adds(heir, true))
    }
}
