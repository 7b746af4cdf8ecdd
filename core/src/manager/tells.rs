//! Requests that wait and block no connection: the late reply of each is a message to a channel.
//!
//! There may be a hundred thousand of them, so each takes little memory: requests share what they
//! have in common, and only the queue has the owner's name.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::{Bounds, Group, HashMap, LockId, Manager, Parked, WaitEnd};
use crate::grammar::{TellTo, Want};
use crate::{ClientId, Mode, Owner, Refusal, Reply, WaiterId, Wake};

/// What the requests of one user for one lock to one channel have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// The lock for which they wait.
    pub lock: LockId,
    /// The caller's user; a call by another module has none.
    pub user: Option<Rc<[u8]>>,
    /// The shard channel.
    pub channel: Rc<[u8]>,
}

/// The id of a message as a number; most ids are numbers.
fn number_of(id: &[u8]) -> Option<u64> {
    let number: u64 = str::from_utf8(id).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == id).then_some(number)
}

/// A request that waits for a message.
#[derive(Clone, Debug)]
pub struct Told {
    line: Rc<Line>,
    /// The id with which the message begins, as a number; any other id is in [`Tells::texts`].
    number: u64,
    /// As in [`Tells::by_owner`].
    hash: u64,
}

/// There may be a million of them.
const _: () = assert!(size_of::<Told>() <= 24, "a request with TELL takes more memory");

/// A message that is due: its destination and its content.
#[derive(Clone, Debug)]
pub struct DueMessage {
    /// The lock, the channel, and the user as which it is sent.
    pub line: Rc<Line>,
    /// What it begins with.
    pub id: Vec<u8>,
    /// The owner that an error names.
    pub owner: Option<Box<Owner>>,
    /// How the wait ended. `None` if its owner withdrew it, and therefore knows.
    pub end: Option<WaitEnd>,
}

/// Who waits for what.
#[derive(Clone, Debug)]
pub struct AskingOwner {
    /// The lock in whose queue it waits.
    pub lock: LockId,
    /// The owner.
    pub owner: Owner,
    /// The user; empty for a call by another module.
    pub user: Rc<[u8]>,
}

/// A grant or a renewal that waits for acknowledgments.
#[derive(Debug)]
struct PendingTold {
    owner: Owner,
    /// What was asked for.
    asked: PendingRequest,
}

/// A request that waits for acknowledgments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingRequest {
    /// To acquire one lock, in this mode.
    Acquire(Mode),
    /// Several locks.
    Several,
    /// To renew the owner's hold of this mode, or its holds of both modes.
    Renew(Option<Mode>),
}

/// What a request asks for that may replace a waiting request with TELL.
#[derive(Clone, Copy, Debug)]
pub enum Same<'a> {
    /// This lock alone, in this mode.
    One(&'a LockId, Mode),
    /// To renew holds of this lock alone, of this mode or of both.
    Renewal(&'a LockId, Option<Mode>),
    /// Several locks of a database.
    Several {
        /// The database.
        db: i32,
        /// The locks, in key order.
        wants: &'a [Want<&'a [u8]>],
        /// To renew the holds.
        is_renewal: bool,
    },
}

/// A waiting request with TELL of the same owner and user, which another request replaces.
#[derive(Clone, Copy, Debug)]
pub struct OwnWait {
    /// The request.
    pub waiter: WaiterId,
    /// Whether it is granted, and waits for acknowledgments.
    pub is_granted: bool,
}

/// The end of a wait, kept until its message is sent; and the owner that an error names.
type End = (Option<WaitEnd>, Option<Box<Owner>>);

/// All requests that wait for messages.
#[derive(Default)]
pub(super) struct Tells {
    all: HashMap<WaiterId, Told>,
    /// The ids that are not numbers.
    texts: HashMap<WaiterId, Box<[u8]>>,
    /// Each line, and how many requests belong to it.
    lines: HashMap<Rc<Line>, usize>,
    /// Requests by the hash of their owner's waits, and among these by what they ask for; observers
    /// by a hash of their key and of where their messages go.
    by_owner: BTreeSet<(u64, WaiterId)>,
    /// The requests whose hold is to be tied to the connection that sent them.
    sessions: BTreeSet<(ClientId, WaiterId)>,
    clients: HashMap<WaiterId, ClientId>,
    pending: HashMap<WaiterId, PendingTold>,
    due: HashMap<WaiterId, End>,
    /// The last request from before this server ceased to be a primary. It and all before it that
    /// are not in `due` get [`Refusal::Demoted`]: one entry for each would take too long.
    refused_upto: Option<WaiterId>,
    /// How many of these have yet to get it.
    refused: usize,
}

/// These bits of the hash of a wait depend on its locks, and all others on the owner, who may have
/// very many waits.
const OF_LOCKS: u64 = (1 << 24) - 1;

/// The first hash of an owner's waits.
fn hash_of(db: i32, user: Option<&[u8]>, owner: &[u8]) -> u64 {
    let user = Owner::hash_of(user.unwrap_or_default());
    let db = u64::from(db.unsigned_abs()).rotate_left(32);
    (Owner::hash_of(owner).rotate_left(1) ^ user ^ db) & !OF_LOCKS
}

/// The bits of these locks, which are in key order. They have no seed: the search for deadlocks
/// sees an owner's waits in the same order each time.
fn bits_of<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> u64 {
    let state = FixedState::default();
    let add = |all: u64, key| all.rotate_left(1) ^ state.hash_one(key);
    keys.into_iter().fold(0, add) & OF_LOCKS
}

/// The hash of an observer with this line and id.
fn observer_hash(line: &Line, id: &[u8]) -> u64 {
    let place = Owner::hash_of(&line.channel).rotate_left(11) ^ Owner::hash_of(id);
    hash_of(line.lock.db, line.user.as_deref(), &line.lock.key) ^ place.rotate_left(3)
}

impl Tells {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.all.len().saturating_sub(self.due.len()).saturating_sub(self.refused)
    }

    pub(super) fn lock_of(&self, waiter: WaiterId) -> Option<LockId> {
        self.all.get(&waiter).map(|told| told.line.lock.clone())
    }

    /// Whether it waits and has no message due.
    pub(super) fn waits(&self, waiter: WaiterId) -> bool {
        self.all.contains_key(&waiter) && !self.has_end(waiter)
    }

    fn has_end(&self, waiter: WaiterId) -> bool {
        self.is_refused(waiter) || self.due.contains_key(&waiter)
    }

    /// Whether it gets [`Refusal::Demoted`], unless it is in `due`.
    fn is_refused(&self, waiter: WaiterId) -> bool {
        self.refused_upto.is_some_and(|last| waiter <= last)
    }

    /// The end of its wait, if its message is due.
    fn end_of(&self, waiter: WaiterId) -> Option<End> {
        let refused = || (Some(WaitEnd::Replied(Reply::Refused(Refusal::Demoted))), None);
        self.due.get(&waiter).cloned().or_else(|| self.is_refused(waiter).then(refused))
    }

    /// Ends the wait of every request with [`Refusal::Demoted`]. Returns these requests in the
    /// order in which they were sent.
    pub(super) fn refuse_all(&mut self) -> Vec<WaiterId> {
        let mut waiting: Vec<WaiterId> =
            self.all.keys().copied().filter(|waiter| self.waits(*waiter)).collect();
        waiting.sort_unstable();
        self.refused = self.refused.saturating_add(waiting.len());
        self.refused_upto = self.refused_upto.max(waiting.last().copied());
        waiting
    }

    /// The request now waits for this lock.
    pub(super) fn stands_at(&mut self, waiter: WaiterId, lock: &LockId) {
        let Some(Told { line, .. }) = self.all.get(&waiter).cloned() else { return };
        let next = self.share(Line { lock: lock.clone(), ..Line::clone(&line) });
        self.all.entry(waiter).and_modify(|told| told.line = next);
        self.leave_line(&line);
    }

    /// The request asks for the locks of this group, wherever it stands.
    pub(super) fn asks_for(&mut self, waiter: WaiterId, group: &Group) {
        let Some(told) = self.all.get_mut(&waiter) else { return };
        self.by_owner.remove(&(told.hash, waiter));
        told.hash = told.hash & !OF_LOCKS | bits_of(group.keys.iter().map(|want| &*want.key));
        self.by_owner.insert((told.hash, waiter));
    }

    fn share(&mut self, line: Line) -> Rc<Line> {
        let (line, count) = match self.lines.remove_entry(&line) {
            Some((same, count)) => (same, count.saturating_add(1)),
            None => (Rc::new(line), 1),
        };
        self.lines.insert(line.clone(), count);
        line
    }

    /// One request fewer belongs to this line.
    fn leave_line(&mut self, line: &Line) {
        let Some(count) = self.lines.get_mut(line) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.lines.remove(line);
        }
    }

    /// The id with which the message to this waiter begins.
    fn id_of(&self, waiter: WaiterId, told: &Told) -> Vec<u8> {
        let text = if self.texts.is_empty() { None } else { self.texts.get(&waiter) };
        text.map_or_else(|| told.number.to_string().into_bytes(), |text| text.to_vec())
    }

    /// Forgets where the message of a request goes. What its grant waits for remains.
    fn take(&mut self, waiter: WaiterId) -> Option<Told> {
        if self.all.is_empty() {
            return None;
        }
        let told = self.all.remove(&waiter)?;
        self.by_owner.remove(&(told.hash, waiter));
        if self.due.remove(&waiter).is_none() && self.is_refused(waiter) {
            self.refused = self.refused.saturating_sub(1);
        }
        if !self.texts.is_empty() {
            self.texts.remove(&waiter);
        }
        if let Some(client) = self.clients.remove(&waiter) {
            self.sessions.remove(&(client, waiter));
        }
        self.leave_line(&told.line);
        Some(told)
    }

    /// Forgets a request. Returns the lock for which it waited.
    #[inline]
    pub(super) fn end(&mut self, waiter: WaiterId) -> Option<LockId> {
        if !self.pending.is_empty() {
            self.pending.remove(&waiter);
        }
        self.take(waiter).map(|told| told.line.lock.clone())
    }

    /// The waiting requests with a hash from this one to that one.
    fn with_hash(&self, from: u64, to: u64) -> impl Iterator<Item = (WaiterId, &Told)> {
        let (first, last) = (WaiterId::from(1), WaiterId::from(u64::MAX));
        let all = self.by_owner.range((from, first)..=(to, last)).map(|(_, waiter)| *waiter);
        let all = all.filter(|waiter| !self.has_end(*waiter));
        all.filter_map(|waiter| self.all.get(&waiter).map(|told| (waiter, told)))
    }

    /// A request whose hold is to be tied to this connection.
    pub(super) fn of_session(&self, client: ClientId) -> Option<WaiterId> {
        let (other, waiter) = self.sessions.range((client, WaiterId::from(1))..).next()?;
        (*other == client).then_some(*waiter)
    }

    /// Sets the end of a request's wait. False if the request is unknown or has ended already.
    pub(super) fn end_with(&mut self, waiter: WaiterId, end: End) -> bool {
        let is_news = self.waits(waiter);
        if is_news {
            self.due.insert(waiter, end);
        }
        is_news
    }

    /// The grant of this request waits for acknowledgments.
    pub(super) fn is_pending(&mut self, waiter: WaiterId, owner: Owner, asked: PendingRequest) {
        if self.all.contains_key(&waiter) {
            self.pending.entry(waiter).or_insert(PendingTold { owner, asked });
        }
    }
}

impl Manager {
    /// How many requests wait for messages.
    pub fn tell_count(&self) -> usize {
        self.tells.len()
    }

    /// Checks that another request may wait for a message.
    ///
    /// # Errors
    /// `rlock.max-tells` is reached.
    pub fn may_tell(&self, bounds: &Bounds) -> Result<(), Refusal> {
        let max = bounds.max_tells;
        if self.tells.len() < max { Ok(()) } else { Err(Refusal::TooManyTells { max }) }
    }

    /// From now on, a request waits for a message, which replaces any earlier wait with this
    /// number. `parked` describes it as it would a blocked connection, but has a client only if the
    /// request asks for a session.
    pub fn tell_begins(&mut self, waiter: WaiterId, parked: Parked, to: TellTo<'_>) {
        self.tells.take(waiter);
        let Parked { lock, owner, user, client, .. } = parked;
        let (channel, user) = (to.channel.into(), (!user.is_empty()).then_some(user));
        let line = self.tells.share(Line { lock, user, channel });
        let (LockId { db, key }, user) = (&line.lock, line.user.as_deref());
        let hash = match &owner {
            Some(owner) => hash_of(*db, user, owner.as_bytes()) | bits_of([&**key]),
            None => observer_hash(&line, to.id),
        };
        let number = number_of(to.id).unwrap_or_else(|| {
            self.tells.texts.insert(waiter, to.id.into());
            0
        });
        let tells = &mut self.tells;
        tells.by_owner.insert((hash, waiter));
        if let Some(client) = client {
            tells.sessions.insert((client, waiter));
            tells.clients.insert(waiter, client);
        }
        tells.all.insert(waiter, Told { line, number, hash });
    }

    /// A request that waited for a message is replaced by a blocked connection.
    pub fn tell_ends(&mut self, waiter: WaiterId) {
        self.tells.end(waiter);
    }

    /// The owner and user of a request that waits for locks and has no reply yet; `None` for
    /// observers.
    pub fn waits(&self, waiter: WaiterId) -> Option<AskingOwner> {
        if let Some(told) = self.tells.all.get(&waiter) {
            let (owner, line) = (self.owner_of_told(waiter)?.clone(), &told.line);
            let (lock, user) = (line.lock.clone(), line.user.clone().unwrap_or_default());
            return self.tells.waits(waiter).then_some(AskingOwner { lock, owner, user });
        }
        let parked = self.waits.get(waiter).filter(|parked| parked.waits())?;
        let (lock, user) = (parked.lock.clone(), parked.user.clone());
        Some(AskingOwner { lock, owner: parked.owner.clone()?, user })
    }

    /// Whether the reply to this request is a message.
    pub fn is_told(&self, waiter: WaiterId) -> bool {
        self.tells.all.contains_key(&waiter)
    }

    /// Where the message of a request goes.
    pub fn told_line(&self, waiter: WaiterId) -> Option<Rc<Line>> {
        self.tells.all.get(&waiter).map(|told| told.line.clone())
    }

    /// The message that is due for this waiter.
    pub fn due_message(&self, waiter: WaiterId) -> Option<DueMessage> {
        let (told, (end, owner)) = (self.tells.all.get(&waiter)?, self.tells.end_of(waiter)?);
        let pending = self.tells.pending.get(&waiter);
        let owner = owner.or_else(|| pending.map(|it| Box::new(it.owner.clone())));
        let id = self.tells.id_of(waiter, told);
        Some(DueMessage { line: told.line.clone(), id, owner, end })
    }

    /// Sets the reply of a request with `TELL`. False if it has a reply already.
    pub(super) fn answer_told(&mut self, wake: &Wake) -> bool {
        let end = (!wake.is_withdrawn).then(|| WaitEnd::Replied(wake.reply.clone()));
        self.tells.end_with(wake.waiter, (end, wake.owner.clone()))
    }

    /// The owner of a request that waits for a message.
    fn owner_of_told(&self, waiter: WaiterId) -> Option<&Owner> {
        if let Some(pending) = self.tells.pending.get(&waiter) {
            return Some(&pending.owner);
        }
        if let Some(group) = self.groups.all.get(&waiter) {
            return Some(&group.entry.owner);
        }
        let LockId { db, key } = &self.tells.all.get(&waiter)?.line.lock;
        self.locks.get(*db, key)?.queue.blocked(waiter).map(|entry| &entry.owner)
    }

    /// The waits with `TELL` of this owner in a database that `user` began, all or those for
    /// the locks with these bits; compare [`super::waits::BlockedConnections::of_owner`].
    pub(super) fn told_of_owner<'a>(
        &'a self,
        db: i32,
        bits: Option<u64>,
        owner: &'a Owner,
        user: Option<&'a [u8]>,
    ) -> impl Iterator<Item = (WaiterId, &'a LockId)> + use<'a> {
        let own = hash_of(db, user, owner.as_bytes());
        let all = self.tells.with_hash(own | bits.unwrap_or(0), own | bits.unwrap_or(OF_LOCKS));
        let is_it = move |(waiter, told): &(WaiterId, &Told)| {
            let line = &told.line;
            (line.lock.db, line.user.as_deref()) == (db, user)
                && self.owner_of_told(*waiter) == Some(owner)
        };
        all.filter(is_it).map(|(waiter, told)| (waiter, &told.line.lock))
    }

    /// The request with TELL of this owner and user for the same, if it waits: for its locks or for
    /// acknowledgments.
    pub fn told_request(&self, owner: &Owner, user: &[u8], same: Same<'_>) -> Option<OwnWait> {
        if self.tells.all.is_empty() {
            return None;
        }
        let user = (!user.is_empty()).then_some(user);
        let (db, bits) = match same {
            Same::One(lock, _) | Same::Renewal(lock, _) => (lock.db, bits_of([&*lock.key])),
            Same::Several { db, wants, .. } => (db, bits_of(wants.iter().map(|want| want.key))),
        };
        self.told_of_owner(db, Some(bits), owner, user).find_map(|(waiter, lock)| {
            let is_granted = self.asks_the_same(waiter, lock, same)?;
            Some(OwnWait { waiter, is_granted })
        })
    }

    /// Whether a request that stands at this lock is granted, if it asks for the same.
    fn asks_the_same(&self, waiter: WaiterId, at: &LockId, same: Same<'_>) -> Option<bool> {
        let pending = self.tells.pending.get(&waiter).map(|pending| pending.asked);
        match (same, self.groups.all.get(&waiter)) {
            (Same::One(lock, mode), None) if at == lock => match pending {
                Some(asked) => (asked == PendingRequest::Acquire(mode)).then_some(true),
                None => {
                    let entry = self.locks.get(lock.db, &lock.key)?.queue.blocked(waiter)?;
                    (entry.mode == mode).then_some(false)
                }
            },
            (Same::Renewal(lock, mode), None) if at == lock => {
                (pending == Some(PendingRequest::Renew(mode))).then_some(true)
            }
            (Same::Several { wants, is_renewal, .. }, Some(group)) if group.wants(wants) => {
                let renews = pending.is_some_and(|asked| asked != PendingRequest::Several);
                (renews == is_renewal).then_some(!group.waits())
            }
            _ => None,
        }
    }

    /// The observer of this lock whose message goes to the same channel with the same id.
    pub fn told_observer(&self, lock: &LockId, user: &[u8], to: TellTo<'_>) -> Option<WaiterId> {
        let user: Option<Rc<[u8]>> = (!user.is_empty()).then(|| user.into());
        let line = Line { lock: lock.clone(), user, channel: to.channel.into() };
        let hash = observer_hash(&line, to.id);
        let mut all = self.tells.with_hash(hash, hash);
        let same = |(waiter, told): &(WaiterId, &Told)| {
            let is_it = *told.line == line && self.tells.id_of(*waiter, told) == to.id;
            is_it && self.observers.knows(*waiter)
        };
        all.find(same).map(|(waiter, _)| waiter)
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub(super) fn check_tells(&self) -> Result<(), String> {
        let tells = &self.tells;
        let by_owner = tells.all.iter().map(|(waiter, told)| (told.hash, *waiter));
        let sessions = tells.clients.iter().map(|(waiter, client)| (*client, *waiter));
        let is_refused =
            |waiter: &&WaiterId| tells.is_refused(**waiter) && !tells.due.contains_key(waiter);
        let refused = tells.all.keys().filter(is_refused);
        let is_known = |waiter: &WaiterId| tells.all.contains_key(waiter);
        let agree = [
            ("by_owner", by_owner.collect::<BTreeSet<_>>() == tells.by_owner),
            ("sessions", sessions.collect::<BTreeSet<_>>() == tells.sessions),
            ("clients", tells.clients.keys().all(is_known)),
            ("due", tells.due.keys().all(is_known)),
            ("refused", tells.refused == refused.count()),
            ("texts", tells.texts.keys().all(is_known)),
            ("pending", tells.pending.keys().all(is_known)),
            ("lines", tells.lines.values().sum::<usize>() == tells.all.len()),
        ];
        let wrong = agree.into_iter().find(|(_, agrees)| !agrees);
        wrong.map_or(Ok(()), |(what, _)| Err(format!("{what} disagree with those that wait")))
    }
}
