//! Faults that can be planted in the engine, and in the simulated server around it. Each must turn
//! a run red: what cannot fail shows nothing.

/// What is done wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The gate says that it is open, whatever the server would refuse.
    GateLeftOpen,
    /// The manager does not learn that a connection ended.
    SessionKept,
    /// Every fifth effect does not go along the replication stream.
    EffectLost,
    /// Every fifth effect goes along the replication stream twice.
    EffectTwice,
    /// A replica gives a deadline a second more than its primary said.
    RenewedOnReplica,
    /// The alarm of the next deadline is not set.
    AlarmForgotten,
    /// A connection that lost its session is not closed.
    ClosingForgotten,
    /// A grant whose connection closed before its reply is not revoked.
    UndoForgotten,
    /// A grant counts as unheard until the server forgets the wait, though its reply has left.
    HeardForgotten,
    /// The key's time to live is not moved with its deadlines.
    TtlForgotten,
    /// The manager does not learn that a key was removed.
    KeyLossUntold,
    /// The manager does not learn that a value arrived at a free name.
    ArrivalUntold,
    /// A blocked connection's answer is dropped.
    AnswerForgotten,
    /// The offset that replicas must acknowledge is that before the effect was written.
    OffsetNotedEarly,
    /// A replica counts that is still to get all the data.
    OfflineCounted,
    /// Nobody waits for acknowledgments.
    ToldAtOnce,
    /// A session's deadline needs no acknowledgment.
    SessionUnacknowledged,
    /// A session's deadline is not checked before its connection's commands.
    OverdueRuns,
    /// A new primary grants at once.
    GraceIgnored,
    /// Each effect reaches the replicas by itself, and not in one unit with the others of its step.
    UnitSplit,
    /// The manager does not learn that a connection that waited for several locks has closed.
    DepartureUntold,
    /// A message leaves in the midst of a transaction or a script.
    MessageInside,
    /// That a lock was acquired is published when its messages have left.
    EventsForgotten,
    /// The engine takes each request for another user's.
    UserUnknown,
    /// The engine does not learn that a connection ended if a request with TELL waits for it and no
    /// hold is tied to it.
    AskerKept,
    /// `rlock.max-tell-ms` is ignored.
    TellUnbound,
    /// `rlock.max-tells` is ignored.
    TellsUncounted,
    /// Every third message is left out.
    MessageLeftOut,
    /// A request that waits for a message is handed to the replicas.
    WaitReplicated,
    /// One of the engine's own.
    Engine(rlock_engine::PlantedFault),
}

impl Fault {
    /// All that can be planted.
    pub const ALL: [Self; 41] = [
        Self::Engine(rlock_engine::PlantedFault::MessageUnheard),
        Self::UserUnknown,
        Self::AskerKept,
        Self::TellUnbound,
        Self::TellsUncounted,
        Self::MessageLeftOut,
        Self::MessageInside,
        Self::EventsForgotten,
        Self::WaitReplicated,
        Self::Engine(rlock_engine::PlantedFault::ListenersNotAsked),
        Self::Engine(rlock_engine::PlantedFault::ChannelRightsForgotten),
        Self::Engine(rlock_engine::PlantedFault::ToldTwice),
        Self::GateLeftOpen,
        Self::SessionKept,
        Self::EffectLost,
        Self::EffectTwice,
        Self::RenewedOnReplica,
        Self::AlarmForgotten,
        Self::ClosingForgotten,
        Self::UndoForgotten,
        Self::HeardForgotten,
        Self::TtlForgotten,
        Self::Engine(rlock_engine::PlantedFault::TokensUnseen),
        Self::KeyLossUntold,
        Self::ArrivalUntold,
        Self::AnswerForgotten,
        Self::OffsetNotedEarly,
        Self::OfflineCounted,
        Self::Engine(rlock_engine::PlantedFault::RevocationForgotten),
        Self::ToldAtOnce,
        Self::SessionUnacknowledged,
        Self::OverdueRuns,
        Self::GraceIgnored,
        Self::Engine(rlock_engine::PlantedFault::ObserversForgotten),
        Self::UnitSplit,
        Self::DepartureUntold,
        Self::Engine(rlock_engine::PlantedFault::LockLeftOut),
        Self::Engine(rlock_engine::PlantedFault::RenewalLeftOut),
        Self::Engine(rlock_engine::PlantedFault::GroupsForgotten),
        Self::Engine(rlock_engine::PlantedFault::SeveralToldAtOnce),
        Self::Engine(rlock_engine::PlantedFault::PartNotRevoked),
    ];
}
