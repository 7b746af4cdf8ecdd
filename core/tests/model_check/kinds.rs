//! How often each kind of input, reply and message occurred.

use std::collections::BTreeMap;
use std::fmt;

use rlock_core::{
    Change, ClientId, Effects, Event, Instead, Levels, Mode, Refusal, Reply, Token, Wake,
};

use super::steps::{Step, Wait};

/// All kinds that can occur, in the order in which they are printed. What only the module produces
/// is left out: `TOOMANY` of `rlock.max-waiters`, and that no token below 2^53 remains.
const ALL: [Kind; 71] = [
    ("input", "ACQUIRE"),
    ("input", "ACQUIRE BLOCK 0"),
    ("input", "ACQUIRE BLOCK ms"),
    ("input", "ACQUIRE QUEUE"),
    ("input", "… READ"),
    ("input", "… WRITE"),
    ("input", "… UPGRADE"),
    ("input", "… LIMIT"),
    ("input", "… MAXQUEUE"),
    ("input", "… SESSION"),
    ("input", "… DEPTH"),
    ("input", "MACQUIRE"),
    ("input", "MRELEASE"),
    ("input", "RELEASE"),
    ("input", "RELEASE ALL"),
    ("input", "RELEASE DEPTH"),
    ("input", "RELEASE TOKEN"),
    ("input", "RENEW"),
    ("input", "CANCEL"),
    ("input", "FORCE"),
    ("input", "FORCE READ"),
    ("input", "FORCE WRITE"),
    ("input", "TAKE"),
    ("input", "a parked connection leaves"),
    ("input", "a grant is heard of"),
    ("input", "a grant is not heard of"),
    ("input", "a millisecond passes"),
    ("input", "the alarm is late"),
    ("input", "a session's connection ends"),
    ("input", "the key vanishes"),
    ("input", "the slot moves"),
    ("input", "another value is put over it"),
    ("input", "rlock.max-tickets is reached"),
    ("reply", "a new hold"),
    ("reply", "entered again"),
    ("reply", "nil, and until when"),
    ("reply", "nil"),
    ("reply", "must wait, and until when"),
    ("reply", "must wait"),
    ("reply", "0"),
    ("reply", "1"),
    ("reply", "renewed"),
    ("reply", "2 or more"),
    ("reply", "NOTHELD, it is free"),
    ("reply", "NOTHELD, but another hold of its own"),
    ("reply", "NOTHELD, a writer holds"),
    ("reply", "NOTHELD, a reader holds"),
    ("reply", "NOTHELD, readers hold"),
    ("reply", "DEADLOCK with its own READ"),
    ("reply", "DEADLOCK with another upgrade"),
    ("reply", "DEADLOCK in a cycle"),
    ("reply", "ERR, DEPTH skips a level"),
    ("reply", "TOOMANY levels"),
    ("reply", "TOOMANY tickets"),
    ("wake", "a new hold"),
    ("wake", "entered again"),
    ("wake", "nil, and until when"),
    ("wake", "nil"),
    ("wake", "TOOMANY levels"),
    ("wake", "WRONGTYPE"),
    ("wake", "TRYAGAIN"),
    ("event", "rlock.acquired"),
    ("event", "rlock.upgraded"),
    ("event", "rlock.released"),
    ("event", "rlock.downgraded"),
    ("event", "rlock.expired"),
    ("event", "rlock.forced"),
    ("event", "rlock.disconnected"),
    ("event", "rlock.turn"),
    ("session", "its hold is lost"),
    ("change", "a hold goes on"),
];

/// A kind: of what (an input, a reply, …), and which.
pub type Kind = (&'static str, &'static str);

#[derive(Clone, Debug, Default)]
pub struct Kinds(BTreeMap<Kind, u64>);

impl Kinds {
    fn came(&mut self, kind: Kind) {
        *self.0.entry(kind).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (kind, count) in &other.0 {
            *self.0.entry(*kind).or_default() += count;
        }
    }

    /// Kinds that never came.
    pub fn missing(&self) -> Vec<Kind> {
        let unknown = self.0.keys().find(|kind| !ALL.contains(kind));
        assert_eq!(unknown, None, "a kind that is not in the table");
        ALL.into_iter().filter(|kind| !self.0.contains_key(kind)).collect()
    }

    pub fn happened(&mut self, step: Step) {
        let kind = match step {
            Step::Asks(ask) => {
                let is_write = ask.mode == Mode::Write;
                self.came(if is_write { ("input", "… WRITE") } else { ("input", "… READ") });
                let options = [
                    (ask.upgrade, ("input", "… UPGRADE")),
                    (ask.limit.is_some(), ("input", "… LIMIT")),
                    (ask.max_queue.is_some(), ("input", "… MAXQUEUE")),
                    (ask.client.is_some(), ("input", "… SESSION")),
                    (ask.depth.is_some(), ("input", "… DEPTH")),
                ];
                let said = options.into_iter().filter(|(is_said, _)| *is_said);
                said.for_each(|(_, kind)| self.came(kind));
                match ask.wait {
                    Wait::No => ("input", "ACQUIRE"),
                    Wait::Block(None) => ("input", "ACQUIRE BLOCK 0"),
                    Wait::Block(Some(_)) => ("input", "ACQUIRE BLOCK ms"),
                    Wait::Ticket(_) => ("input", "ACQUIRE QUEUE"),
                }
            }
            Step::AsksAll { .. } => ("input", "MACQUIRE"),
            Step::ReleasesAll { .. } => ("input", "MRELEASE"),
            Step::Releases { levels: Levels::One, .. } => ("input", "RELEASE"),
            Step::Releases { levels: Levels::All, .. } => ("input", "RELEASE ALL"),
            Step::Releases { levels: Levels::DownTo(_), .. } => ("input", "RELEASE DEPTH"),
            Step::ReleasesByToken { .. } => ("input", "RELEASE TOKEN"),
            Step::Renews { .. } => ("input", "RENEW"),
            Step::Cancels { .. } => ("input", "CANCEL"),
            Step::Forces { mode: None, .. } => ("input", "FORCE"),
            Step::Forces { mode: Some(Mode::Read), .. } => ("input", "FORCE READ"),
            Step::Forces { mode: Some(Mode::Write), .. } => ("input", "FORCE WRITE"),
            Step::Takes { .. } => ("input", "TAKE"),
            Step::Leaves { .. } => ("input", "a parked connection leaves"),
            Step::Hears { .. } => ("input", "a grant is heard of"),
            Step::GoesUnheard { .. } => ("input", "a grant is not heard of"),
            Step::Passes { is_late: false } => ("input", "a millisecond passes"),
            Step::Passes { is_late: true } => ("input", "the alarm is late"),
            Step::Disconnects { .. } => ("input", "a session's connection ends"),
            Step::Vanishes { .. } => ("input", "the key vanishes"),
            Step::IsDismissed { by_type: false, .. } => ("input", "the slot moves"),
            Step::IsDismissed { by_type: true, .. } => ("input", "another value is put over it"),
            Step::TicketsRunOut => ("input", "rlock.max-tickets is reached"),
        };
        self.came(kind);
    }

    pub fn came_of_it(&mut self, effects: &Effects<'_>) {
        let begins = |change: &Change<'_>| match change {
            Change::Granted { token, .. } => Some(*token),
            _ => None,
        };
        let mut new: Vec<Token> = effects.changes.iter().filter_map(begins).collect();
        // The first reply about a new hold is its acquisition; the others are re-entries.
        let mut is_new = |token: Token| {
            let place = new.iter().position(|other| *other == token);
            place.map(|place| new.remove(place)).is_some()
        };
        self.replied_as("reply", &effects.reply, &mut is_new);
        effects.wakes.iter().for_each(|wake| self.replied_as("wake", &wake.reply, &mut is_new));
        effects.events.iter().for_each(|event| self.came(event_kind(*event)));
        effects.turns.iter().for_each(|_| self.came(("event", "rlock.turn")));
        self.lost(&effects.lost);
        let goes_on = |change: &&Change<'_>| matches!(change, Change::Updated { .. });
        effects
            .changes
            .iter()
            .filter(goes_on)
            .for_each(|_| self.came(("change", "a hold goes on")));
    }

    /// Records a reply that the deadlock search gave.
    pub fn replied(&mut self, reply: &Reply) {
        self.replied_as("reply", reply, |_| false);
    }

    pub fn woke(&mut self, wakes: &[Wake]) {
        wakes.iter().for_each(|wake| self.replied_as("wake", &wake.reply, |_| false));
    }

    pub fn lost(&mut self, lost: &[ClientId]) {
        lost.iter().for_each(|_| self.came(("session", "its hold is lost")));
    }

    fn replied_as(&mut self, to: &'static str, reply: &Reply, is_new: impl FnOnce(Token) -> bool) {
        let what = match reply {
            Reply::Granted { token, .. } if is_new(*token) => "a new hold",
            Reply::Granted { .. } => "entered again",
            Reply::NotNow { wait_ms: Some(_) } => "nil, and until when",
            Reply::NotNow { wait_ms: None } => "nil",
            Reply::MustWait { wait_ms: Some(_) } => "must wait, and until when",
            Reply::MustWait { wait_ms: None } => "must wait",
            Reply::MustConfirm | Reply::Pending => "of replicas",
            Reply::Renewed => "renewed",
            Reply::Count(0) => "0",
            Reply::Count(1) => "1",
            Reply::Count(_) => "2 or more",
            Reply::Refused(refusal) => refused(refusal),
        };
        self.came((to, what));
    }
}

fn refused(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotHeld { instead, .. } => match instead {
            Instead::Free => "NOTHELD, it is free",
            Instead::Own(..) => "NOTHELD, but another hold of its own",
            Instead::WriteBy(_) => "NOTHELD, a writer holds",
            Instead::ReadBy(_) => "NOTHELD, a reader holds",
            Instead::ReadByMany(_) => "NOTHELD, readers hold",
        },
        Refusal::UpgradeWouldDeadlock => "DEADLOCK with its own READ",
        Refusal::SecondUpgrade => "DEADLOCK with another upgrade",
        Refusal::Cycle(_) => "DEADLOCK in a cycle",
        Refusal::DepthSkipped { .. } => "ERR, DEPTH skips a level",
        Refusal::TooDeep { .. } => "TOOMANY levels",
        Refusal::TooManyTickets => "TOOMANY tickets",
        Refusal::HoldIsPending => "TRYAGAIN, its hold is pending",
        Refusal::WrongType => "WRONGTYPE",
        Refusal::TryAgain => "TRYAGAIN",
        Refusal::TooManyWaiters { .. }
        | Refusal::TooManyTells { .. }
        | Refusal::NotListed
        | Refusal::ChannelNotPermitted
        | Refusal::ChannelElsewhere
        | Refusal::Demoted
        | Refusal::NoReplicas { .. }
        | Refusal::NoAcks
        | Refusal::NoAcksMoved
        | Refusal::CannotConfirm
        | Refusal::CannotClose
        | Refusal::TooManySessions
        | Refusal::NotPermitted
        | Refusal::TooManyObservers { .. }
        | Refusal::MayNotObserve
        | Refusal::NotPermittedSeveral
        | Refusal::Closing
        | Refusal::NoTokenLeft => "of the module",
    }
}

fn event_kind(event: Event) -> Kind {
    match event {
        Event::Acquired => ("event", "rlock.acquired"),
        Event::Upgraded => ("event", "rlock.upgraded"),
        Event::Released => ("event", "rlock.released"),
        Event::Downgraded => ("event", "rlock.downgraded"),
        Event::Expired => ("event", "rlock.expired"),
        Event::Forced => ("event", "rlock.forced"),
        Event::Disconnected => ("event", "rlock.disconnected"),
        Event::Unconfirmed | Event::Evicted | Event::Removed => ("event", "of the module"),
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in ALL {
            let count = self.0.get(&kind).copied().unwrap_or_default();
            writeln!(to, "{count:>14}  {}: {}", kind.0, kind.1)?;
        }
        Ok(())
    }
}
