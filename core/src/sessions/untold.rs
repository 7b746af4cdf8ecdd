//! Sessions of grants whose caller has no reply yet. If such a grant is taken back, the hold is
//! tied as if the grant had never been made: to the previous connection, or to none.

use std::collections::BTreeMap;

use super::{Session, Sessions};
use crate::{ClientId, Token, WaiterId};

/// What is kept of sessions until their connections have their replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Untold {
    by_waiter: BTreeMap<WaiterId, Token>,
    /// Earlier sessions that may be restored, the latest at the end.
    replaced: BTreeMap<Token, Vec<Replaced>>,
}

/// A session that another one replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Replaced {
    session: Session,
    /// Its connection closed meanwhile.
    is_gone: bool,
}

impl Sessions {
    /// Ties a hold to a blocked connection without a reply. It belongs to the connection that asked
    /// last.
    pub(crate) fn tie_untold(&mut self, token: Token, waiter: WaiterId, session: Session) {
        let client = session.client;
        let new = Session { untold: Some(waiter), ..session };
        let (tied, replaced) = match self.unseat(token) {
            // The other session came from a wait that began later.
            Some(other) if other.untold > new.untold => (other, Some(new)),
            other => (new, other),
        };
        if let Some(session) = replaced {
            let all = self.untold.replaced.entry(token).or_default();
            all.push(Replaced { session, is_gone: false });
        }
        self.seat(token, tied);
        self.index(token, client);
        self.untold.by_waiter.insert(waiter, token);
    }

    /// Whether this blocked connection has, or may get back, a session and has no reply yet.
    pub(crate) fn is_untold(&self, waiter: WaiterId) -> bool {
        self.untold.by_waiter.contains_key(&waiter)
    }

    /// This connection has its reply: the sessions that its own replaced will not be restored.
    pub(crate) fn told(&mut self, waiter: WaiterId) {
        let Some(token) = self.untold.by_waiter.remove(&waiter) else { return };
        let mut before = self.untold.replaced.remove(&token).unwrap_or_default();
        let is_it = |session: &Session| session.untold == Some(waiter);
        if let Some(session) = self.by_token.get_mut(token).filter(|session| is_it(session)) {
            session.untold = None;
        } else if let Some(place) = before.iter().position(|other| is_it(&other.session)) {
            let mut kept = before.split_off(place);
            kept.first_mut().into_iter().for_each(|told| told.session.untold = None);
            self.untold.replaced.insert(token, kept);
        }
        before.into_iter().for_each(|other| self.drop_tie(token, &other.session));
    }

    /// The grant of this wait is taken back. True if it had tied a hold.
    pub(crate) fn withdraw(&mut self, waiter: WaiterId) -> bool {
        let Some(token) = self.untold.by_waiter.remove(&waiter) else { return false };
        let is_it = |session: &Session| session.untold == Some(waiter);
        let mut before = self.untold.replaced.remove(&token).unwrap_or_default();
        let withdrawn = if self.by_token.get(token).is_some_and(is_it) {
            let withdrawn = self.unseat(token);
            match before.pop() {
                // The hold would have ended with that connection.
                Some(Replaced { is_gone: true, .. }) => {
                    self.gone.push(token);
                    before.drain(..).for_each(|other| self.drop_tie(token, &other.session));
                }
                Some(Replaced { session, .. }) => self.seat(token, session),
                None => {}
            }
            withdrawn
        } else {
            let place = before.iter().position(|other| is_it(&other.session));
            place.map(|place| before.remove(place).session)
        };
        if !before.is_empty() {
            self.untold.replaced.insert(token, before);
        }
        withdrawn.into_iter().for_each(|session| self.drop_tie(token, &session));
        true
    }

    /// The hold is lost to its session. Returns the connections that were told, or are about to
    /// be, that it is tied to them: the last one, and those before it while that one has not heard.
    pub(crate) fn lose(&mut self, token: Token) -> Vec<ClientId> {
        let replaced = self.untold.replaced.get(&token).into_iter().flatten();
        let there = replaced.filter(|other| !other.is_gone);
        let mut clients: Vec<ClientId> = there.map(|other| other.session.client).collect();
        match self.untie(token) {
            Some(last) => clients.push(last),
            None => clients.clear(),
        }
        clients.sort_unstable();
        clients.dedup();
        clients
    }

    /// Forgets the earlier sessions of this hold.
    pub(super) fn forget_replaced(&mut self, token: Token) {
        if !self.untold.replaced.is_empty()
            && let Some(all) = self.untold.replaced.remove(&token)
        {
            all.into_iter().for_each(|other| self.drop_tie(token, &other.session));
        }
    }

    /// A connection closed to which this hold could have been tied again.
    pub(super) fn end_replaced(&mut self, token: Token, client: ClientId) {
        let all = self.untold.replaced.get_mut(&token).into_iter().flatten();
        all.filter(|other| other.session.client == client).for_each(|other| other.is_gone = true);
        self.unindex(token, client);
    }

    /// Drops a session that was removed and will not be restored.
    pub(super) fn drop_tie(&mut self, token: Token, session: &Session) {
        session.untold.map(|waiter| self.untold.by_waiter.remove(&waiter));
        self.unindex(token, session.client);
    }

    /// Whether this hold is tied to this connection, or may be tied to it again.
    pub(super) fn is_tied_to(&self, token: Token, client: ClientId) -> bool {
        let is_it = |session: &Session| session.client == client;
        let mut replaced = self.untold.replaced.get(&token).into_iter().flatten();
        self.by_token.get(token).is_some_and(is_it)
            || replaced.any(|other| !other.is_gone && is_it(&other.session))
    }
}
