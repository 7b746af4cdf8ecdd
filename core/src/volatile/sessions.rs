//! The holds that are tied to connections. Only this server has these ties: they are never saved or
//! replicated.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::value::count::less;
use crate::value::small_map::SmallMap;
use crate::{ClientId, EpochMs, LeaseMs, Now, Token, WaiterId};

/// A hold that lasts as long as a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The connection that asked last.
    pub client: ClientId,
    /// The lease that each renewal gives the hold, counted from the renewal.
    pub lease: LeaseMs,
    /// When the server renews it next.
    pub renew_at: EpochMs,
    /// How many replicas must acknowledge each renewal.
    pub acks: u8,
    /// When to check whether the session is lost while it cannot be renewed; no later than the
    /// hold's deadline.
    pub ends_at: EpochMs,
    /// The wait that the session came from, until its connection has got the reply.
    unheard: Option<WaiterId>,
}

impl Session {
    /// A session that begins now, for the connection that asked for it, with this lease.
    pub(crate) fn new(client: ClientId, lease: LeaseMs, now: Now) -> Self {
        let (renew_at, ends_at) = (now.after(third(lease)), now.after(lease));
        Self { client, lease, renew_at, acks: 0, ends_at, unheard: None }
    }

    /// Makes this session end at the last deadline that `acks` replicas have acknowledged: at
    /// first, that is `ends_at`. The next renewal is due a third of the lease after that deadline
    /// was written, however long the acknowledgments took.
    pub(crate) fn by_acks(self, acks: u8, ends_at: EpochMs) -> Self {
        let two_thirds = self.lease.get().saturating_sub(third(self.lease).get());
        let renew_at = self.renew_at.min(ends_at.before_ms(two_thirds));
        Self { acks, ends_at, renew_at, ..self }
    }

    /// When the session of a hold with this deadline is lost, unless the deadline is moved.
    pub(crate) fn closes_at(deadline: EpochMs) -> EpochMs {
        deadline.before_ms(Self::EARLY_MS)
    }

    /// A session is lost this many milliseconds before its hold's deadline, so that its connection
    /// is closed before another server may grant the lock.
    const EARLY_MS: u64 = 10;
}

/// The sessions of one lock, by their hold's token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    by_token: SmallMap<Token, Session>,
    by_client: SmallMap<(ClientId, Token)>,
    by_renewal: SmallMap<(EpochMs, Token)>,
    by_end: SmallMap<(EpochMs, Token)>,
    /// How many of the sessions last until an acknowledged deadline.
    by_acks: usize,
    /// Earlier sessions that may be restored; that of the wait that began last is at the end.
    replaced: BTreeMap<Token, Vec<Replaced>>,
    /// Holds whose connections closed; the next input ends them.
    gone: SmallVec<[Token; 1]>,
    /// Connections that were tied or untied since the last call.
    touched: SmallVec<[ClientId; 1]>,
}

impl Sessions {
    /// Sessions are renewed every third of the lease: if one renewal fails, the next is still in
    /// time.
    const RENEWALS_PER_LEASE: u64 = 3;

    /// Whether no hold is tied.
    pub fn is_empty(&self) -> bool {
        self.by_token.is_empty() && self.gone.is_empty()
    }

    /// Number of holds that are tied.
    pub fn len(&self) -> usize {
        self.by_token.len()
    }

    /// The session of the hold with this token.
    pub fn get(&self, token: Token) -> Option<&Session> {
        self.by_token.get(token)
    }

    /// Whether a hold is tied to this connection.
    pub fn has_client(&self, client: ClientId) -> bool {
        self.first_of(client).is_some()
    }

    /// A hold that is tied to this connection, or may become tied to it again.
    fn first_of(&self, client: ClientId) -> Option<Token> {
        let next = self.by_client.first_from((client, Token::MIN));
        next.filter(|(other, _)| *other == client).map(|(_, token)| token)
    }

    /// The connections that holds are tied to; a connection may occur several times.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.by_client.keys().map(|(client, _)| client)
    }

    /// Connections that were tied or untied since the last call.
    pub fn take_touched(&mut self) -> SmallVec<[ClientId; 1]> {
        std::mem::take(&mut self.touched)
    }

    /// The tokens of the holds that are tied.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.by_token.keys().collect()
    }

    /// Ties a hold. It belongs to the connection that asked last.
    pub(crate) fn tie(&mut self, token: Token, session: Session) {
        self.untie(token);
        self.seat(token, session);
        self.index(token, session.client);
    }

    /// Adds the session of a hold that has none.
    fn seat(&mut self, token: Token, session: Session) {
        self.by_renewal.insert((session.renew_at, token), ());
        self.by_end.insert((session.ends_at, token), ());
        self.by_acks = self.by_acks.saturating_add((session.acks > 0).into());
        self.by_token.insert(token, session);
    }

    fn unseat(&mut self, token: Token) -> Option<Session> {
        let session = self.by_token.remove(token)?;
        self.by_renewal.remove((session.renew_at, token));
        self.by_end.remove((session.ends_at, token));
        self.by_acks = less(self.by_acks, (session.acks > 0).into());
        Some(session)
    }

    fn index(&mut self, token: Token, client: ClientId) {
        self.touched.push(client);
        self.by_client.insert((client, token), ());
    }

    fn unindex(&mut self, token: Token, client: ClientId) {
        if !self.is_tied_to(token, client) && self.by_client.remove((client, token)).is_some() {
            self.touched.push(client);
        }
    }

    /// How many replicas must acknowledge its renewals; 0 if it needs none.
    pub(crate) fn acks_of(&self, token: Token) -> u8 {
        self.by_token.get(token).map_or(0, |session| session.acks)
    }

    /// A reply or `acks` replicas promise that the hold lasts until this moment: so does its
    /// session, unless it needs more acknowledgments.
    pub(crate) fn lasts_at_least(&mut self, token: Token, ends_at: EpochMs, acks: u8) {
        let is_news = |session: &Session| session.acks <= acks && session.ends_at < ends_at;
        if self.get(token).is_some_and(is_news) {
            self.lasts_until(token, ends_at);
        }
    }

    /// When to check whether a session that needs acknowledgments is lost.
    pub(crate) fn next_end_by_acks(&self) -> Option<EpochMs> {
        self.next_end().filter(|_| self.by_acks > 0)
    }

    /// Sets the moment until which the session lasts.
    pub(crate) fn lasts_until(&mut self, token: Token, ends_at: EpochMs) {
        if let Some(session) = self.by_token.get_mut(token) {
            self.by_end.rename((session.ends_at, token), (ends_at, token));
            session.ends_at = ends_at;
        }
    }

    /// A session that may be lost by now, because its recorded deadline is near or has passed.
    pub(crate) fn first_ended(&self, now: Now) -> Option<Token> {
        let (ends_at, token) = self.by_end.first()?;
        Session::closes_at(ends_at).is_over_at(now).then_some(token)
    }

    /// When the next session may be lost.
    pub(crate) fn next_end(&self) -> Option<EpochMs> {
        self.by_end.first().map(|(ends_at, _)| Session::closes_at(ends_at))
    }

    pub(crate) fn untie(&mut self, token: Token) -> Option<ClientId> {
        let session = self.unseat(token)?;
        self.forget_replaced(token);
        self.unindex(token, session.client);
        Some(session.client)
    }

    /// A connection closed: its holds end with the next input, because ending them is a change.
    pub(crate) fn end_client(&mut self, client: ClientId) {
        while let Some(token) = self.first_of(client) {
            if self.get(token).is_some_and(|session| session.client == client) {
                self.untie(token);
                self.gone.push(token);
            } else {
                self.end_replaced(token, client);
            }
        }
    }

    /// Ends a hold that is no longer tied, with the next input.
    pub(crate) fn end_later(&mut self, token: Token) {
        self.gone.push(token);
    }

    /// Takes the holds that this input ends.
    pub(crate) fn take_gone(&mut self) -> SmallVec<[Token; 1]> {
        std::mem::take(&mut self.gone)
    }

    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Takes a hold whose renewal is due, and schedules the next one a third of the lease later.
    /// Returns its token and lease.
    pub(crate) fn renew_next(&mut self, now: Now) -> Option<(Token, LeaseMs)> {
        let (renew_at, token) = self.by_renewal.first()?;
        if !renew_at.is_over_at(now) {
            return None;
        }
        let session = self.by_token.get_mut(token)?;
        session.renew_at = now.after(third(session.lease));
        self.by_renewal.rename((renew_at, token), (session.renew_at, token));
        Some((token, session.lease))
    }

    pub(crate) fn next_renewal(&self) -> Option<EpochMs> {
        self.by_renewal.first().map(|(at, _)| at)
    }
}

fn third(lease: LeaseMs) -> LeaseMs {
    LeaseMs::new(lease.get() / Sessions::RENEWALS_PER_LEASE).unwrap_or(lease)
}

/// A session that another one replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Replaced {
    session: Session,
    /// Its connection closed meanwhile.
    is_gone: bool,
}

impl Sessions {
    /// Ties a hold to a blocked connection that has no reply yet. The session belongs to the
    /// connection that asked last.
    pub(crate) fn tie_unheard(&mut self, token: Token, waiter: WaiterId, session: Session) {
        let client = session.client;
        let new = Session { unheard: Some(waiter), ..session };
        let (tied, replaced) = match self.unseat(token) {
            // The other session came from a wait that began later.
            Some(other) if other.unheard > new.unheard => (other, Some(new)),
            other => (new, other),
        };
        if let Some(session) = replaced {
            let all = self.replaced.entry(token).or_default();
            // A wait that began later may have been granted earlier: an upgrade stands in front.
            let place = all.partition_point(|other| other.session.unheard < session.unheard);
            all.insert(place, Replaced { session, is_gone: false });
        }
        self.seat(token, tied);
        self.index(token, client);
    }

    /// This connection got its reply: the sessions that its own session replaced will not be
    /// restored.
    pub(crate) fn heard(&mut self, token: Token, waiter: WaiterId) {
        let mut before = self.replaced.remove(&token).unwrap_or_default();
        let is_it = |session: &Session| session.unheard == Some(waiter);
        if let Some(session) = self.by_token.get_mut(token).filter(|session| is_it(session)) {
            session.unheard = None;
        } else if let Some(place) = before.iter().position(|other| is_it(&other.session)) {
            let mut kept = before.split_off(place);
            kept.first_mut().into_iter().for_each(|told| told.session.unheard = None);
            self.replaced.insert(token, kept);
        } else {
            self.keep_replaced(token, std::mem::take(&mut before));
        }
        before.into_iter().for_each(|other| self.unindex(token, other.session.client));
    }

    fn keep_replaced(&mut self, token: Token, replaced: Vec<Replaced>) {
        if !replaced.is_empty() {
            self.replaced.insert(token, replaced);
        }
    }

    /// The grant of this wait, which tied a hold, is revoked.
    pub(crate) fn withdraw(&mut self, token: Token, waiter: WaiterId) {
        let is_it = |session: &Session| session.unheard == Some(waiter);
        let mut before = self.replaced.remove(&token).unwrap_or_default();
        let withdrawn = if self.by_token.get(token).is_some_and(is_it) {
            let withdrawn = self.unseat(token);
            match before.pop() {
                // The hold would have ended with that connection.
                Some(Replaced { is_gone: true, .. }) => {
                    self.gone.push(token);
                    before.drain(..).for_each(|other| self.unindex(token, other.session.client));
                }
                Some(Replaced { session, .. }) => self.seat(token, session),
                None => {}
            }
            withdrawn
        } else {
            let place = before.iter().position(|other| is_it(&other.session));
            place.map(|place| before.remove(place).session)
        };
        self.keep_replaced(token, before);
        withdrawn.into_iter().for_each(|session| self.unindex(token, session.client));
    }

    /// Ends the session as lost. Returns all connections whose reply has said, or will say, that
    /// the hold is tied to them: the last one, and the earlier ones as long as the last one has not
    /// got its reply.
    pub(crate) fn lose(&mut self, token: Token) -> Vec<ClientId> {
        let replaced = self.replaced.get(&token).into_iter().flatten();
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
    fn forget_replaced(&mut self, token: Token) {
        if !self.replaced.is_empty()
            && let Some(all) = self.replaced.remove(&token)
        {
            all.into_iter().for_each(|other| self.unindex(token, other.session.client));
        }
    }

    /// A connection closed to which this hold could have become tied again.
    fn end_replaced(&mut self, token: Token, client: ClientId) {
        let all = self.replaced.get_mut(&token).into_iter().flatten();
        all.filter(|other| other.session.client == client).for_each(|other| other.is_gone = true);
        self.unindex(token, client);
    }

    /// Whether this hold is tied to this connection, or may become tied to it again.
    fn is_tied_to(&self, token: Token, client: ClientId) -> bool {
        let is_it = |session: &Session| session.client == client;
        let mut replaced = self.replaced.get(&token).into_iter().flatten();
        self.by_token.get(token).is_some_and(is_it)
            || replaced.any(|other| !other.is_gone && is_it(&other.session))
    }

    /// Holds that are tied, or may become tied again, to a connection without a reply; each with
    /// the wait of that connection.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = (Token, WaiterId)> {
        let tied = self.by_token.iter().map(|(token, session)| (token, session.unheard));
        let replaced = self
            .replaced
            .iter()
            .flat_map(|(token, all)| all.iter().map(|other| (*token, other.session.unheard)));
        tied.chain(replaced).filter_map(|(token, unheard)| Some((token, unheard?)))
    }

    /// Checks that the indexes agree with the sessions.
    ///
    /// # Errors
    /// The index that does not, for tests.
    pub(crate) fn check(&self) -> Result<(), String> {
        let all = || self.by_token.iter();
        let replaced = self.replaced.iter().flat_map(|(token, all)| {
            all.iter().filter(|other| !other.is_gone).map(|other| (other.session.client, *token))
        });
        let clients: BTreeSet<(ClientId, Token)> =
            all().map(|(token, session)| (session.client, token)).chain(replaced).collect();
        let renewals: BTreeSet<_> = all().map(|(token, it)| (it.renew_at, token)).collect();
        let ends: BTreeSet<_> = all().map(|(token, it)| (it.ends_at, token)).collect();
        let is_tied = |token: &Token| self.by_token.get(*token).is_some();
        let began = |other: &Replaced| other.session.unheard;
        let agree = [
            ("clients", self.by_client.keys().eq(clients)),
            ("renewals", self.by_renewal.keys().eq(renewals)),
            ("ends", self.by_end.keys().eq(ends)),
            ("acknowledged ones", all().filter(|(_, it)| it.acks > 0).count() == self.by_acks),
            ("replaced ones", self.replaced.iter().all(|(at, all)| is_tied(at) && !all.is_empty())),
            ("their order", self.replaced.values().all(|all| all.is_sorted_by_key(began))),
        ];
        let wrong = agree.into_iter().find(|(_, agrees)| !agrees);
        wrong.map_or(Ok(()), |(what, _)| Err(format!("{what} disagree with {self:?}")))
    }
}
