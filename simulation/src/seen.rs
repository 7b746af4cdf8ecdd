//! Counts of events. Whatever cannot be promised must be seen to happen: a run in which such an
//! event never occurs has shown nothing about it.

use std::collections::BTreeMap;
use std::fmt;

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    // What cannot be promised: two clients sure of one lock, by their own clocks, …
    /// … because the primary died before a replica had the grant.
    LostGrant,
    /// … because it died before a replica had the renewal.
    LostRenewal,
    /// … because the old primary went on granting beside the new one.
    Partition,
    /// … because a stranger deleted, moved or replaced the key, or cut its time to live.
    Taken,
    /// … because an operator ended the hold.
    Forced,
    /// … because the server ended a session whose connection was cut, before its client noticed.
    SessionCut,
    /// … because somebody else released it under the same owner's name.
    SharedName,
    /// … because a server's clock was set, or differs from that of its predecessor.
    Clocks,
    /// … because a server lost its data with the grant.
    LostData,
    /// A token is no greater than one that an earlier primary issued: clocks differ.
    TokenNotRising,
    /// A hold is back: its release was lost with the primary.
    ReleaseLost,
    /// An owner slept past its lease, and releases a hold that it no longer has.
    Overslept,
    // What cannot be promised about a confirmed grant.
    /// A hold whose connection broke before it was confirmed is in effect on the next primary.
    PendingStands,
    /// A revoked hold is in effect on the next primary, which did not get the revocation.
    TakenBackStands,
    /// A replica was promoted that lacks what another one acknowledged.
    LaggardPromoted,
    /// All replicas that acknowledged are on the side of the old primary.
    AckedPartition,
    /// The primary died, together with all replicas that had acknowledged.
    AcknowledgersLost,
    /// By another server's clock, an acknowledged deadline came earlier.
    AckedClocks,
    // What must happen in a run, or its laws were not tested.
    /// A grant or renewal was confirmed.
    Acknowledged,
    /// A grant or renewal was not acknowledged, and the caller got -NOACKS.
    NotAcknowledged,
    /// A request was refused because too few replicas are connected to acknowledge it.
    TooFewToAcknowledge,
    /// An acknowledged grant survived its primary.
    AckedSurvived,
    /// A session's connection was closed although its hold lasts, because acknowledgments were
    /// missing.
    SessionUnacknowledged,
    /// A lease of an earlier primary ended during the grace period of the next one, which does not
    /// know of it.
    Graced,
    /// A connection waited and was granted.
    Waited,
    /// A ticket's owner asked again and was granted.
    TicketUsed,
    /// A wait was refused because it would have closed a cycle.
    Deadlock,
    /// Due work waited for the gate.
    Postponed,
    /// A session's connection was closed by the server.
    SessionClosed,
    /// A grant did not reach its connection, and was revoked.
    TakenBack,
    /// A client's write was refused because too few replicas were connected.
    TooFewReplicas,
    /// An observer got the holder, or learned that there is none.
    ObserverTold,
    /// A request waited, and a message granted it.
    ToldByMessage,
    /// A message reported a renewal.
    RenewalToldByMessage,
    /// An observer got the holder by a message.
    ObserverToldByMessage,
    /// A message was an error.
    ErrorByMessage,
    /// A message reported the end of a wait.
    NilByMessage,
    /// Nobody listened when a result was due.
    Untold,
    /// A request for a message was withdrawn.
    TellWithdrawn,
    /// A request for a message ended with the connection to which its hold was to be tied.
    TellClosed,
    /// A request replaced one that waited for a message.
    AskedAgain,
    /// A request whose grant or renewal waited for acknowledgments was sent again.
    AskedAgainPending,
    /// A connection was blocked, and replaced a request that waited for a message.
    AskedAgainBlocked,
    /// A request in a transaction or a script waits for a message.
    WaitsInLonger,
    /// A client that lost a message asked again, and got its token.
    ToldAgain,
    /// A request was refused because too many wait for messages.
    TooManyTells,
    /// Several locks were granted at once.
    GrantedSeveral,
    /// A connection waited for several locks and was granted.
    WaitedForSeveral,
    /// A connection waited for several locks, and got another reply.
    WaitForSeveralEnded,
    /// A grant of several locks was confirmed.
    SeveralAcknowledged,
    /// A grant of several locks was not acknowledged, and the caller got -NOACKS.
    SeveralUnconfirmed,
    /// A promoted replica had all of a grant of several locks that replicas had acknowledged.
    SeveralAckedSurvived,
    /// A lock was reserved for a connection that waits for several.
    Reserved,
    /// Several holds were renewed.
    RenewedSeveral,
    /// A promoted replica had all of a grant of several locks.
    SeveralSurvived,
    /// A promoted replica had nothing of a grant of several locks.
    SeveralLost,
    /// A promise survived its primary: the promoted replica had it.
    Survived,
    /// A replica had everything its primary had, and was equal to it.
    InSync,
    /// A full sync.
    FullSync,
    /// A replica was promoted.
    Promotion,
    /// A primary became a replica.
    Demotion,
}

impl Kind {
    /// What cannot be promised, and must be seen to happen.
    pub const NOT_PROMISED: [Self; 18] = [
        Self::LostGrant,
        Self::LostRenewal,
        Self::Partition,
        Self::Taken,
        Self::Forced,
        Self::SessionCut,
        Self::SharedName,
        Self::Clocks,
        Self::LostData,
        Self::TokenNotRising,
        Self::ReleaseLost,
        Self::Overslept,
        Self::PendingStands,
        Self::TakenBackStands,
        Self::LaggardPromoted,
        Self::AckedPartition,
        Self::AcknowledgersLost,
        Self::AckedClocks,
    ];

    /// What must happen, or the laws were not tested.
    pub const TRIED: [Self; 43] = [
        Self::ToldByMessage,
        Self::RenewalToldByMessage,
        Self::ObserverToldByMessage,
        Self::ErrorByMessage,
        Self::NilByMessage,
        Self::Untold,
        Self::TellWithdrawn,
        Self::TellClosed,
        Self::AskedAgain,
        Self::AskedAgainPending,
        Self::AskedAgainBlocked,
        Self::WaitsInLonger,
        Self::ToldAgain,
        Self::TooManyTells,
        Self::Waited,
        Self::TicketUsed,
        Self::Deadlock,
        Self::Postponed,
        Self::SessionClosed,
        Self::TakenBack,
        Self::TooFewReplicas,
        Self::ObserverTold,
        Self::GrantedSeveral,
        Self::WaitedForSeveral,
        Self::WaitForSeveralEnded,
        Self::Reserved,
        Self::SeveralAcknowledged,
        Self::SeveralUnconfirmed,
        Self::SeveralAckedSurvived,
        Self::RenewedSeveral,
        Self::SeveralSurvived,
        Self::SeveralLost,
        Self::Survived,
        Self::InSync,
        Self::FullSync,
        Self::Promotion,
        Self::Demotion,
        Self::Acknowledged,
        Self::NotAcknowledged,
        Self::TooFewToAcknowledge,
        Self::AckedSurvived,
        Self::SessionUnacknowledged,
        Self::Graced,
    ];
}

/// How often each event occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    counts: BTreeMap<Kind, u64>,
}

impl Seen {
    /// Counts one more of this kind.
    pub fn count(&mut self, kind: Kind) {
        *self.counts.entry(kind).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (kind, count) in &other.counts {
            *self.counts.entry(*kind).or_default() += count;
        }
    }

    /// How often this event occurred.
    pub fn of(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// What was never seen.
    pub fn missing(&self) -> Vec<Kind> {
        let all = Kind::NOT_PROMISED.iter().chain(&Kind::TRIED);
        all.copied().filter(|kind| self.of(*kind) == 0).collect()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = |title: &str, kinds: &[Kind]| {
            writeln!(to, "{title}")?;
            kinds.iter().try_for_each(|kind| writeln!(to, "  {:>12}  {kind:?}", self.of(*kind)))
        };
        table("What cannot be promised, seen so often:", &Kind::NOT_PROMISED)?;
        table("What must happen for the laws to be tried:", &Kind::TRIED)
    }
}
