//! A request for several locks is one unit: all are judged at one moment, then all of them change,
//! or none. The rules are here; the caller opens the locks and carries out the decisions.

use crate::grammar::Want;
use crate::step::input::{Acquire, Input, Parking, Renew, Reply};
use crate::step::open_lock::OpenLock;
use crate::step::several::{OwnPlace, Standing};
use crate::{Refusal, Token};

/// The open locks of one request, each at its place in key order.
pub trait OpenLocks<'a> {
    /// Why a lock cannot be decided.
    type Error;

    /// Looks at a lock.
    ///
    /// # Errors
    /// There is none at this place.
    fn look<T>(
        &mut self,
        place: usize,
        look: impl FnOnce(OpenLock<'_>) -> T,
    ) -> Result<T, Self::Error>;

    /// Decides an input at a lock.
    ///
    /// # Errors
    /// There is none at this place.
    fn decide(&mut self, place: usize, input: Input<'a>) -> Result<Reply, Self::Error>;

    /// Issues a token for all holds that the request begins.
    ///
    /// # Errors
    /// No token below 2^53 remains.
    fn issue(&mut self) -> Result<Token, Refusal>;

    /// Checks that this many more holds may be tied to connections.
    ///
    /// # Errors
    /// `rlock.max-sessions` would be exceeded.
    fn may_tie(&self, more: usize) -> Result<(), Refusal>;
}

/// A reply to a request for several locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyAbout {
    /// The reply.
    pub reply: Reply,
    /// The index in the request of the lock that the reply is about.
    pub number: usize,
}

/// What several locks are wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'u, 'a> {
    /// The locks, in key order.
    pub wants: &'u [Want<&'a [u8]>],
    /// What is asked of each of them, in the mode and with the limit that is wanted there. Its
    /// depth does not count: a hold that its owner has already gets no further level.
    pub ask: Acquire<'a>,
    /// Which of the request's own places in the queue helps it.
    pub place: OwnPlace,
}

/// How the owner stands at one of the locks.
#[derive(Clone, Copy, Debug)]
struct Judgment {
    standing: Standing,
    /// How many acknowledgments its own hold there needs, if it is pending.
    acks: u8,
    /// Whether its hold there is tied to a connection already.
    is_tied: bool,
}

/// The locks that an owner may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// How many replicas must acknowledge the grant before the reply.
    pub acks: u8,
    /// How many holds the request begins.
    pub new_holds: usize,
    /// How many more holds it ties to a connection; `None` if it asks for no session.
    new_ties: Option<usize>,
}

/// A request that can begin: nothing keeps it out.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The judgment of its locks.
    pub judged: Judged,
    /// The token of all holds that the request begins.
    token: Option<Token>,
}

impl<'a> Unit<'_, 'a> {
    /// The claim of the request to one of its locks.
    pub fn claim(&self, want: &Want<&[u8]>) -> Acquire<'a> {
        Acquire { mode: want.mode, limit: want.limit, depth: Some(1), ..self.ask }
    }

    /// A reply that is not about a particular lock: it names the first lock of the request.
    pub fn about_all(&self, reply: Reply) -> ReplyAbout {
        ReplyAbout { reply, number: self.number(0) }
    }

    fn number(&self, place: usize) -> usize {
        self.wants.get(place).map_or(0, |want| want.number)
    }

    /// Judges all of the locks, after ending what has expired there. `Err` is the reply if the
    /// owner may not enter all of them.
    ///
    /// # Errors
    /// As [`OpenLocks::look`].
    pub fn judge_all<L: OpenLocks<'a>>(
        &self,
        locks: &mut L,
    ) -> Result<Result<Judged, ReplyAbout>, L::Error> {
        let mut all = Vec::with_capacity(self.wants.len());
        for (place, want) in self.wants.iter().enumerate() {
            let claim = self.claim(want);
            let judge = |open: OpenLock<'_>| open.judgment(open.standing(&claim, self.place));
            let judged = locks
                .look(place, |open| if open.is_overdue() { None } else { Some(judge(open)) })?;
            all.push(match judged {
                Some(judged) => judged,
                None => {
                    locks.decide(place, Input::Tick)?;
                    locks.look(place, judge)?
                }
            });
        }
        Ok(self.verdict(&all))
    }

    /// Judges the locks as if the owner's tickets were withdrawn. Nothing may be overdue there.
    ///
    /// # Errors
    /// As [`OpenLocks::look`].
    pub fn judge_without_tickets<L: OpenLocks<'a>>(
        &self,
        locks: &mut L,
    ) -> Result<Result<Judged, ReplyAbout>, L::Error> {
        let mut all = Vec::with_capacity(self.wants.len());
        for (place, want) in self.wants.iter().enumerate() {
            let claim = self.claim(want);
            let judge = |open: OpenLock<'_>| open.judgment(open.standing_without_ticket(&claim));
            all.push(locks.look(place, judge)?);
        }
        Ok(self.verdict(&all))
    }

    /// Whether the owner may enter all of the locks; `Err` is the reply if not.
    fn verdict(&self, all: &[Judgment]) -> Result<Judged, ReplyAbout> {
        let standings = || all.iter().map(|judgment| judgment.standing).enumerate();
        if let Some((place, _)) = standings().find(|(_, it)| *it == Standing::WouldDeadlock) {
            let reply = Reply::Refused(Refusal::UpgradeWouldDeadlock);
            return Err(ReplyAbout { reply, number: self.number(place) });
        }
        let mut barred: Option<(Option<u64>, usize)> = None;
        for (place, standing) in standings() {
            if let Standing::Barred { wait_ms } = standing {
                let (longest, first) = barred.unwrap_or((Some(0), place));
                let longest = longest.zip(wait_ms).map(|(one, other)| one.max(other));
                barred = Some((longest, first));
            }
        }
        if let Some((wait_ms, place)) = barred {
            let reply = Reply::NotNow { wait_ms };
            return Err(ReplyAbout { reply, number: self.number(place) });
        }
        let pending = all.iter().map(|judgment| judgment.acks).max().unwrap_or(0);
        let new_holds = standings().filter(|(_, it)| *it == Standing::Open).count();
        let new_ties = || all.iter().filter(|judgment| !judgment.is_tied).count();
        let new_ties = self.ask.session.map(|_| new_ties());
        Ok(Judged { acks: self.ask.acks.max(pending), new_holds, new_ties })
    }

    /// Whether an owner that may enter the locks can begin now. `Err` is the reply if not: the
    /// limit of sessions is reached, no token is left, or replicas must acknowledge the grant first
    /// and the caller is not blocked yet ([`Reply::MustConfirm`]). Nothing changes.
    ///
    /// # Errors
    /// The reply.
    pub fn prepare<L: OpenLocks<'a>>(
        &self,
        locks: &mut L,
        judged: Judged,
        waits_for_acks: bool,
    ) -> Result<Ready, Reply> {
        judged.may_tie(locks)?;
        if judged.acks > 0 && !waits_for_acks {
            return Err(Reply::MustConfirm);
        }
        let token = match judged.new_holds {
            0 => None,
            _ => Some(locks.issue().map_err(Reply::Refused)?),
        };
        Ok(Ready { judged, token })
    }

    /// Enters all of the locks, for a `caller` whose reply is sent later, or at once. The reply has
    /// the newest token and the earliest deadline; it is [`Reply::Pending`] if replicas must
    /// acknowledge the grant first.
    ///
    /// # Errors
    /// As [`OpenLocks::decide`].
    pub fn enter<L: OpenLocks<'a>>(
        &self,
        locks: &mut L,
        ready: Ready,
        caller: Option<Parking>,
    ) -> Result<Reply, L::Error> {
        let Ready { judged: Judged { acks, .. }, token } = ready;
        let mut newest = None;
        for (place, want) in self.wants.iter().enumerate() {
            let enter = Input::Enter { ask: Acquire { acks, ..self.claim(want) }, token, caller };
            if let Reply::Granted { token, remaining_ms } = locks.decide(place, enter)? {
                let (other, ms) = newest.unwrap_or((token, remaining_ms));
                newest = Some((token.max(other), remaining_ms.min(ms)));
            }
        }
        if caller.is_some() && acks > 0 {
            return Ok(Reply::Pending);
        }
        Ok(newest.map_or(Reply::NotNow { wait_ms: None }, |(token, remaining_ms)| Reply::Granted {
            token,
            remaining_ms,
        }))
    }
}

impl OpenLock<'_> {
    fn judgment(&self, standing: Standing) -> Judgment {
        let Standing::Covered(hold) = standing else {
            return Judgment { standing, acks: 0, is_tied: false };
        };
        let acks = self.volatile.pending_acks(hold.token).unwrap_or(0);
        let is_tied = self.volatile.sessions.get(hold.token).is_some();
        Judgment { standing, acks, is_tied }
    }
}

impl Judged {
    /// # Errors
    /// The limit of sessions is reached.
    pub fn may_tie<'a, L: OpenLocks<'a>>(&self, locks: &L) -> Result<(), Reply> {
        self.new_ties.map_or(Ok(()), |more| locks.may_tie(more).map_err(Reply::Refused))
    }
}

/// Ends what has expired at the first `count` locks. True if something had.
///
/// # Errors
/// As [`OpenLocks::look`].
pub fn catch_up<'a, L: OpenLocks<'a>>(locks: &mut L, count: usize) -> Result<bool, L::Error> {
    let mut was_due = false;
    for place in 0..count {
        if locks.look(place, |open| open.is_overdue())? {
            locks.decide(place, Input::Tick)?;
            was_due = true;
        }
    }
    Ok(was_due)
}

/// Ends every hold of this owner, or those with the token. Returns their number.
///
/// # Errors
/// As [`OpenLocks::decide`].
pub fn release_all<'a, L: OpenLocks<'a>>(
    locks: &mut L,
    count: usize,
    owner: &'a [u8],
    token: Option<Token>,
) -> Result<u64, L::Error> {
    let mut ended: u64 = 0;
    for place in 0..count {
        if let Reply::Count(count) = locks.decide(place, Input::ReleaseAll(owner, token))? {
            ended = ended.saturating_add(count);
        }
    }
    Ok(ended)
}

/// How many replicas must acknowledge a renewal of the owner's holds of all these locks. `Err` is
/// the reply if it does not hold all of them; it names the first missing one in the order of the
/// request.
///
/// # Errors
/// As [`OpenLocks::look`].
pub fn acks_to_renew<'a, L: OpenLocks<'a>>(
    locks: &mut L,
    wants: &[Want<&[u8]>],
    ask: Renew<'a>,
) -> Result<Result<u8, ReplyAbout>, L::Error> {
    let mut acks = ask.acks;
    let mut in_order: Vec<(usize, usize)> =
        wants.iter().enumerate().map(|(place, want)| (want.number, place)).collect();
    in_order.sort_unstable();
    for (number, place) in in_order {
        let own = locks.look(place, |open| {
            let holds = open.lock.holds_of(ask.owner, None, ask.token);
            holds.map(|hold| open.volatile.pending_acks(hold.token).unwrap_or(0)).max()
        })?;
        let Some(own) = own else {
            // What is asked for is not held: the reply names what the owner holds instead.
            let reply = locks.decide(place, Input::Renew(ask))?;
            return Ok(Err(ReplyAbout { reply, number }));
        };
        acks = acks.max(own);
    }
    Ok(Ok(acks))
}

/// Renews the owner's holds of these locks. A blocked caller gets its reply when replicas have
/// acknowledged the renewals.
///
/// # Errors
/// As [`OpenLocks::decide`].
pub fn renew_all<'a, L: OpenLocks<'a>>(
    locks: &mut L,
    count: usize,
    ask: Renew<'a>,
    parking: Option<Parking>,
) -> Result<Reply, L::Error> {
    for place in 0..count {
        let renewal = parking.map(|parking| Input::ParkRenew(ask, parking));
        locks.decide(place, renewal.unwrap_or(Input::Renew(ask)))?;
    }
    Ok(parking.map_or(Reply::Renewed, |_| Reply::Pending))
}
