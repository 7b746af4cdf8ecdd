/// A rule that a test breaks, to show that the simulation, and each replay of its traces, detects
/// that. R1 to R9 are the rules of `clients/ALGORITHM.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// None.
    #[default]
    Nothing,
    /// R1: the seat is free while its last request is still being undone.
    SeatLeft,
    /// R1: an undo does not name the hold by its token.
    UndoneUnnamed,
    /// R1: a request without a reply is undone only once, although it may be executed later.
    UndoneOnce,
    /// R1: a forked process keeps the names of its parent.
    NamesKept,
    /// R2: an unanswered request condemns no other connection.
    SilenceTrusted,
    /// R3: a request may take its full time even at the end of the patience.
    PatienceIgnored,
    /// The limit for outages is ignored.
    OutageForgotten,
    /// The limit for outages counts from the call, and not from what a server last decided.
    OutageFromCall,
    /// R4: a waiting request is sent only once.
    WaitUnrepeated,
    /// R4: a wait that ended by the client's clock is not undone.
    DoubtForgotten,
    /// R4: the message for an earlier request is accepted.
    OldMessageBelieved,
    /// R5: what was never sent is undone.
    UnsentUndone,
    /// R5: a server that could not be reached is connected to again at once.
    DialsUnrested,
    /// R6: a wait continues although the client is closed.
    CloseIgnored,
    /// R7: a grant that came while its caller gave up is forgotten.
    GrantForgotten,
    /// R9: a lease counts from the reply.
    LeaseFromReply,
    /// A session is relied on although its connection has broken.
    BreakBelieved,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::SeatLeft,
        Self::UndoneUnnamed,
        Self::UndoneOnce,
        Self::NamesKept,
        Self::SilenceTrusted,
        Self::PatienceIgnored,
        Self::OutageForgotten,
        Self::OutageFromCall,
        Self::WaitUnrepeated,
        Self::DoubtForgotten,
        Self::OldMessageBelieved,
        Self::UnsentUndone,
        Self::DialsUnrested,
        Self::CloseIgnored,
        Self::GrantForgotten,
        Self::LeaseFromReply,
        Self::BreakBelieved,
    ];
}
