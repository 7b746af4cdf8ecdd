/// A rule that a test breaks, to show that the simulation, and each replay of its traces, finds that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// None.
    #[default]
    Nothing,
    /// R1: the seat is free while its last request is still being undone.
    SeatLeft,
    /// R1: what is undone is not named by its token.
    UndoneUnnamed,
    /// R1: a request without a reply is undone once only, although it may be executed later.
    UndoneOnce,
    /// R1: a forked process keeps the names of its parent.
    NamesKept,
    /// R2: a request that nobody answered condemns no other connection.
    SilenceTrusted,
    /// R3: a request may take as long as ever at the end of the patience.
    PatienceIgnored,
    /// R4: a wait is asked once.
    WaitUnrepeated,
    /// R4: a wait that ended by the clock of the client is not undone.
    DoubtForgotten,
    /// R4: the message for an earlier request is believed.
    OldMessageBelieved,
    /// R5: what was never sent is undone.
    UnsentUndone,
    /// R5: a server that was not reached is connected to at once.
    DialsUnrested,
    /// R6: a wait goes on though the client is closed.
    CloseIgnored,
    /// R7: a grant that came while its caller went away is forgotten.
    GrantForgotten,
    /// R9: a lease counts from the reply.
    LeaseFromReply,
    /// A session is relied on though its connection has broken.
    BreakBelieved,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::SeatLeft,
        Self::UndoneUnnamed,
        Self::UndoneOnce,
        Self::NamesKept,
        Self::SilenceTrusted,
        Self::PatienceIgnored,
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
