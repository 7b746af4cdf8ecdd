//! Several locks, open at one moment: all are looked at, then all are changed and handed to the
//! replicas, before anybody hears of it.

mod decisions;

use rlock_core::grammar::{Access, Want};
use rlock_core::manager::{At, Decided, LockId};
use rlock_core::{
    Claim, ClientId, Confirm, Enter, Input, LeaseMs, Lock, Now, OwnPlace, Parking, Refusal, Renew,
    Reply, Standing, Token, WaiterId,
};

use crate::host::{Content, During, Host, KeyName, OpenKey};
use crate::planted::PlantedFault;
use crate::reports::{self, Report};
use crate::state::State;
use crate::timers;
use crate::unit::{self, Done, RequestError};
use crate::unsaved::{self, Unsaved};

use decisions::{Decision, Decisions, ToPublish};

/// What several locks are wanted for.
#[derive(Clone, Copy)]
pub(crate) struct AcquireAll<'a> {
    pub(crate) owner: &'a [u8],
    pub(crate) lease: LeaseMs,
    pub(crate) session: Option<ClientId>,
    /// How many replicas must acknowledge it.
    pub(crate) acks: u8,
    /// Which place of its own helps it.
    pub(crate) place: OwnPlace,
}

impl<'a> AcquireAll<'a> {
    /// What it claims of one of them.
    pub(crate) fn claim(self, want: &Want<'_>) -> Claim<'a> {
        Claim { owner: self.owner, mode: want.mode, upgrade: false, limit: want.limit }
    }

    /// The caller, if it is blocked.
    pub(crate) fn waiter(self) -> Option<WaiterId> {
        match self.place {
            OwnPlace::Group(waiter) => Some(waiter),
            OwnPlace::None | OwnPlace::Ticket => None,
        }
    }
}

/// How a grant is told, or held back.
#[derive(Clone, Copy)]
pub(crate) struct Telling {
    /// The caller, if its reply comes later.
    pub(crate) waiter: Option<WaiterId>,
    /// As [`Enter::confirm`].
    pub(crate) confirm: Option<Confirm>,
}

/// What an owner has at each of the locks that it may acquire.
pub(crate) struct Judged {
    standings: Vec<Standing>,
    /// How many acknowledgments its own pending holds there need; 0 if none is pending.
    pub(crate) pending_acks: u8,
}

impl Judged {
    /// How many holds the request begins.
    pub(crate) fn new_holds(&self) -> usize {
        self.standings.iter().filter(|standing| **standing == Standing::Open).count()
    }
}

/// The reply to a request for several locks, and which of them it is about, by its number in the
/// request.
pub(crate) type Several = (Reply, usize);

/// Several locks of one database, open, in key order.
pub(crate) struct OpenLocks<'h, 'n, 'm, 'a, H: Host> {
    host: &'h H,
    names: &'n [H::Name<'m>],
    wants: &'n [Want<'a>],
    keys: Vec<Unsaved<H::Key<'h>>>,
    db: i32,
    /// One time for all locks, so that what was judged is still true when the locks are acquired.
    now: Now,
    /// To be published.
    decisions: Decisions<'a>,
    /// What this command did before, at other locks.
    before: Vec<Report>,
    is_plain: bool,
}

impl<H: Host> Drop for OpenLocks<'_, '_, '_, '_, H> {
    /// Whatever was decided reaches the replicas, even if the rest of the step is refused.
    fn drop(&mut self) {
        self.host.state(|state| state.manager.several_change(false));
        self.send();
        unsaved::save(std::mem::take(&mut self.keys));
    }
}

impl<'h, 'n, 'm, 'a, H: Host> OpenLocks<'h, 'n, 'm, 'a, H> {
    /// Opens them for writing.
    pub(crate) fn open(
        host: &'h H,
        names: &'n [H::Name<'m>],
        wants: &'n [Want<'a>],
    ) -> Result<Self, RequestError> {
        if !host.state(|state| state.manager.is_primary()) {
            return Err(RequestError::ReadOnly);
        }
        let named = || wants.iter().filter_map(|want| names.get(want.number));
        let open = |name| Unsaved::from(host.open(name, Access::Writes));
        let mut keys: Vec<Unsaved<H::Key<'h>>> = unit::open(host, || named().map(open).collect());
        if keys.iter_mut().any(|key| matches!(key.content(), Content::Other)) {
            return Err(RequestError::WrongType);
        }
        let (db, now) = (host.db(), host.now());
        host.state(|state| state.manager.several_change(true));
        Ok(Self {
            host,
            names,
            wants,
            keys,
            db,
            now,
            decisions: Decisions::new(wants.len(), host.state(State::take_effect)),
            before: Vec::new(),
            is_plain: true,
        })
    }

    /// This command did something before, which is told with the rest.
    pub(crate) fn tell_also(&mut self, before: Vec<Report>) {
        self.is_plain &= before.is_empty();
        self.before = before;
    }

    pub(crate) fn at(&self, place: usize) -> At<'n> {
        At { db: self.db, key: self.name_of(place).map_or(&[], KeyName::bytes), now: self.now }
    }

    /// Looks at one of the locks.
    pub(crate) fn look<T>(&mut self, place: usize, work: impl FnOnce(&Lock) -> T) -> Option<T> {
        let free = Lock::default();
        self.keys.get_mut(place)?.lock(&free).map(work)
    }

    /// Decides something about one of the locks.
    pub(crate) fn decide(&mut self, place: usize, input: Input<'a>) -> Result<Reply, RequestError> {
        if !self.decisions.continues(place) {
            self.send();
        }
        let (at, host) = (self.at(place), self.host);
        let (Some(want), Some(key)) = (self.wants.get(place), self.keys.get_mut(place)) else {
            return Err(RequestError::WrongType);
        };
        let Some(name) = self.names.get(want.number) else { return Err(RequestError::WrongType) };
        let asks = match &input {
            // A request that waited is counted when it gets its reply.
            Input::Enter(ask) if ask.waiter.is_none() => Some(ask.owner),
            _ => None,
        };
        let mut effects = None;
        let (start, decided) = unit::decide(host, at, name, key, &input, &mut effects)?;
        let done = match decided {
            Decided::Fast(step, _) => ToPublish::Fast(step),
            decided => {
                self.is_plain = false;
                ToPublish::Step(Box::new(decided.effects(effects)))
            }
        };
        Ok(self.decisions.add(place, start, asks, done))
    }

    /// Hands what was decided to the replicas.
    fn send(&mut self) {
        let (names, wants) = (self.names, self.wants);
        self.decisions.send(self.host, self.db, self.now, |place| name_of(names, wants, place));
    }

    fn name_of(&self, place: usize) -> Option<&'n H::Name<'m>> {
        name_of(self.names, self.wants, place)
    }

    /// Ends what has expired, before the locks are judged. True if something had.
    pub(crate) fn catch_up(&mut self) -> Result<bool, RequestError> {
        let mut was_due = false;
        let bounds = self.host.settings().bounds;
        for place in 0..self.keys.len() {
            let (at, host) = (self.at(place), self.host);
            let is_overdue =
                |lock: &Lock| host.state(|state| state.manager.is_overdue(at, &bounds, lock));
            if self.look(place, is_overdue) == Some(true) {
                self.decide(place, Input::Tick)?;
                was_due = true;
            }
        }
        Ok(was_due)
    }

    /// Closes the keys, then publishes what was done, then replies (`say`), then answers who
    /// waited. `others` is what came of it at other locks.
    pub(crate) fn finish(mut self, others: impl FnOnce(&H) -> Vec<Report>, say: impl FnOnce(&H)) {
        let decisions = self.close();
        let (host, is_plain) = (self.host, self.is_plain);
        let others = if is_plain { Vec::new() } else { others(host) };
        let before = std::mem::take(&mut self.before);
        for Decision { place, done, .. } in &decisions {
            let Some(name) = self.name_of(*place) else { continue };
            let Done { changes, events, .. } = done.parts();
            unit::publish_events(host, name, !changes.is_empty(), events);
        }
        // A plain request leaves nothing to be done later, so the timers stay as they are.
        if is_plain {
            return say(host);
        }
        let others: Vec<Report> = before.into_iter().chain(others).collect();
        reports::publish(host, &others);
        say(host);
        for Decision { place, done, .. } in decisions {
            if let (Some(name), ToPublish::Step(mut effects)) = (self.name_of(place), done) {
                unit::answer(host, name, &mut effects);
            }
        }
        reports::answer(host, others, None);
        timers::settle(host);
        if host.state(|state| state.manager.expects_keys()) {
            host.watch_new_keys();
        }
        if host.state(|state| state.manager.watches_commands()) {
            host.watch_commands();
            host.close_lost(During::Command);
        }
    }

    /// Closes the keys. Returns what was done, to be told with what led to it.
    pub(crate) fn into_reports(mut self) -> Vec<Report> {
        let (db, wants) = (self.db, self.wants);
        let told = self.close().into_iter().filter_map(|Decision { place, done, .. }| {
            let id = LockId { db, key: wants.get(place)?.key.into() };
            Some(match done {
                ToPublish::Fast(step) => Report::of_event(id, step.event),
                ToPublish::Step(effects) => Report::of_step(id, *effects),
            })
        });
        told.collect()
    }

    /// Hands what was decided to the replicas, and closes the keys. Returns the decisions.
    fn close(&mut self) -> Vec<Decision<'a>> {
        self.host.state(|state| state.manager.several_change(false));
        self.send();
        unsaved::save(std::mem::take(&mut self.keys));
        let (decisions, buffer) = self.decisions.take();
        self.host.state(|state| state.keep_effect(buffer));
        decisions
    }

    /// Judges one lock: how the owner stands there, and how many acknowledgments its hold there
    /// needs, if it is pending. `None`: the lock is overdue and was not caught up with.
    fn judge(
        &mut self,
        place: usize,
        ask: AcquireAll<'a>,
        has_caught_up: bool,
    ) -> Option<(Standing, u8)> {
        let (at, host, claim) = (self.at(place), self.host, ask.claim(self.wants.get(place)?));
        let bounds = host.settings().bounds;
        self.look(place, |lock| {
            host.state(|state| {
                if !has_caught_up && state.manager.is_overdue(at, &bounds, lock) {
                    return None;
                }
                let standing = state.manager.judge(at, &bounds, lock, claim, ask.place);
                Some((standing, state.manager.acks_to_enter(at, standing)))
            })
        })?
    }

    /// Judges the locks, after ending what has expired there. `Err` is the reply where the owner
    /// may not enter all of them.
    pub(crate) fn judge_all(
        &mut self,
        ask: AcquireAll<'a>,
    ) -> Result<Result<Judged, Several>, RequestError> {
        let mut all = Vec::with_capacity(self.keys.len());
        for place in 0..self.keys.len() {
            if let Some(judged) = self.judge(place, ask, false) {
                all.push(judged);
                continue;
            }
            self.decide(place, Input::Tick)?;
            all.extend(self.judge(place, ask, true));
        }
        Ok(self.judged(all))
    }

    /// Judges the locks, where nothing is overdue, as if the owner's tickets were withdrawn.
    pub(crate) fn judge_without(&mut self, ask: AcquireAll<'a>) -> Result<Judged, Several> {
        let (host, bounds) = (self.host, self.host.settings().bounds);
        let mut all = Vec::with_capacity(self.keys.len());
        for (place, want) in self.wants.iter().enumerate() {
            let (at, claim) = (self.at(place), ask.claim(want));
            let judged = self.look(place, |lock| {
                host.state(|state| {
                    let standing = state.manager.judge_without(at, &bounds, lock, claim);
                    (standing, state.manager.acks_to_enter(at, standing))
                })
            });
            all.extend(judged);
        }
        self.judged(all)
    }

    fn judged(&self, all: Vec<(Standing, u8)>) -> Result<Judged, Several> {
        let pending_acks = all.iter().map(|(_, acks)| *acks).max().unwrap_or(0);
        let standings: Vec<Standing> = all.into_iter().map(|(standing, _)| standing).collect();
        self.verdict(&standings).map(|()| Judged { standings, pending_acks })
    }

    /// Whether the owner may enter all of the locks; `Err` is the reply if not.
    fn verdict(&self, all: &[Standing]) -> Result<(), Several> {
        let number = |place: usize| self.wants.get(place).map_or(0, |want| want.number);
        let itself = all.iter().position(|standing| *standing == Standing::WouldDeadlock);
        if let Some(place) = itself {
            return Err((Reply::Refused(Refusal::UpgradeWouldDeadlock), number(place)));
        }
        let mut barred = None;
        for (place, standing) in all.iter().enumerate() {
            if let Standing::Barred { wait_ms } = standing {
                let (longest, first) = barred.unwrap_or((Some(0), place));
                let longest = longest.zip(*wait_ms).map(|(one, other): (u64, u64)| one.max(other));
                barred = Some((longest, first));
            }
        }
        match barred {
            Some((wait_ms, place)) => Err((Reply::NotNow { wait_ms }, number(place))),
            None => Ok(()),
        }
    }

    /// `Err` is the reply where there may be no more sessions.
    pub(crate) fn may_tie(&self, ask: AcquireAll<'a>, judged: &Judged) -> Result<(), Several> {
        if ask.session.is_none() {
            return Ok(());
        }
        let (host, bounds) = (self.host, self.host.settings().bounds);
        let more = judged.standings.iter().enumerate().filter(|(place, standing)| match standing {
            Standing::Covered(hold) => {
                let at = self.at(*place);
                !host.state(|state| state.manager.has_session(at, hold.token))
            }
            _ => true,
        });
        let more = more.count();
        let may = host.state(|state| state.manager.may_tie(&bounds, more));
        may.map_err(|refusal| (Reply::Refused(refusal), 0))
    }

    /// The token of all holds that the request begins. `Err` is the reply where there is none, or
    /// where there may be no more sessions.
    pub(crate) fn prepare(
        &self,
        ask: AcquireAll<'a>,
        judged: &Judged,
    ) -> Result<Option<Token>, Several> {
        self.may_tie(ask, judged)?;
        if judged.new_holds() == 0 {
            return Ok(None);
        }
        let at = self.at(0);
        let token = self.host.state(|state| state.manager.issue(at));
        token.map(Some).map_err(|refusal| (Reply::Refused(refusal), 0))
    }

    /// Enters all of the locks, which the owner may. The holds that it begins get this token.
    pub(crate) fn enter(
        &mut self,
        ask: AcquireAll<'a>,
        token: Option<Token>,
        telling: Telling,
    ) -> Result<Reply, RequestError> {
        let Telling { waiter, confirm } = telling;
        let (mut newest, mut is_pending): (Option<(Token, u64)>, bool) = (None, false);
        for (place, want) in self.wants.iter().enumerate() {
            if self.is_left_out(PlantedFault::LockLeftOut, place) {
                continue;
            }
            let enter = Enter {
                owner: ask.owner,
                mode: want.mode,
                lease: ask.lease,
                token,
                session: ask.session,
                waiter,
                confirm,
            };
            match self.decide(place, Input::Enter(enter))? {
                Reply::Granted { token, remaining_ms } => {
                    let (other, ms) = newest.unwrap_or((token, remaining_ms));
                    newest = Some((token.max(other), remaining_ms.min(ms)));
                }
                Reply::Pending => is_pending = true,
                _ => {}
            }
        }
        self.send();
        if is_pending {
            return Ok(Reply::Pending);
        }
        let reply = newest.map_or(Reply::NotNow { wait_ms: None }, |(token, remaining_ms)| {
            Reply::Granted { token, remaining_ms }
        });
        Ok(reply)
    }
}

impl<'a, H: Host> OpenLocks<'_, '_, '_, 'a, H> {
    /// How many replicas must acknowledge a renewal of the owner's holds of all the locks. `Err` is
    /// the reply where it does not hold one of them.
    pub(crate) fn acks_to_renew(
        &mut self,
        ask: Renew<'a>,
    ) -> Result<Result<u8, Several>, RequestError> {
        let mut acks = ask.acks;
        let mut in_order: Vec<(usize, usize)> =
            self.wants.iter().enumerate().map(|(place, want)| (want.number, place)).collect();
        in_order.sort_unstable();
        let host = self.host;
        for (number, place) in &in_order {
            let at = self.at(*place);
            let holds = self.look(*place, |lock| {
                let holds = lock.holds_of(ask.owner, ask.token);
                holds.map(|hold| hold.token).collect::<Vec<Token>>()
            });
            let holds = holds.unwrap_or_default();
            if holds.is_empty() {
                // Not held: the reply names what is held instead.
                return Ok(Err((self.decide(*place, Input::Renew(ask))?, *number)));
            }
            for token in holds {
                let own = host.state(|state| state.manager.pending_acks(at.db, at.key, token));
                acks = acks.max(own.unwrap_or(0));
            }
        }
        Ok(Ok(acks))
    }

    /// Renews the owner's holds of all the locks. A blocked caller is told when replicas have
    /// acknowledged that.
    pub(crate) fn renew(
        &mut self,
        ask: Renew<'a>,
        parking: Option<Parking>,
    ) -> Result<Reply, RequestError> {
        for place in 0..self.wants.len() {
            if !self.is_left_out(PlantedFault::RenewalLeftOut, place) {
                let input = match parking {
                    Some(parking) => Input::ParkRenewAll(ask, parking),
                    None => Input::Renew(ask),
                };
                self.decide(place, input)?;
            }
        }
        Ok(parking.map_or(Reply::Renewed, |_| Reply::Pending))
    }
}

impl<H: Host> OpenLocks<'_, '_, '_, '_, H> {
    /// A planted fault forgets the last of several.
    fn is_left_out(&self, fault: PlantedFault, place: usize) -> bool {
        place > 0 && place.saturating_add(1) == self.wants.len() && self.host.has_fault(fault)
    }
}

/// The name of the lock at this place in key order.
fn name_of<'n, N>(names: &'n [N], wants: &[Want<'_>], place: usize) -> Option<&'n N> {
    wants.get(place).and_then(|want| names.get(want.number))
}
