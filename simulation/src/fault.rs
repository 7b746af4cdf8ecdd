//! Faults that can be planted in the engine, and in the simulated server around it. Each must make
//! a run fail: a law that cannot fail shows nothing.

use rlock_core::{Change, snapshot};

/// What is done wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The gate is reported as open, whatever the server would refuse.
    GateLeftOpen,
    /// The manager is not notified that a connection ended.
    SessionKept,
    /// Every fifth effect is missing from the replication stream.
    EffectLost,
    /// Every fifth effect is twice in the replication stream.
    EffectTwice,
    /// A replica applies deadlines a second later than those of its primary.
    RenewedOnReplica,
    /// The alarm of the next deadline is not set.
    AlarmForgotten,
    /// A connection that lost its session is not closed.
    ClosingForgotten,
    /// A grant whose connection closed before its reply is not revoked.
    UndoForgotten,
    /// A grant counts as unheard until the server has unblocked the connection, although its reply
    /// was sent.
    HeardForgotten,
    /// The key's time to live is not changed with its deadlines.
    TtlForgotten,
    /// The manager is not notified that a key was removed.
    KeyLossUntold,
    /// The manager is not notified that a value appeared at a free name.
    ArrivalUntold,
    /// The reply to a blocked connection is dropped.
    AnswerForgotten,
    /// Replicas must acknowledge only the offset before the effect.
    OffsetNotedEarly,
    /// A replica that has yet to load the data counts.
    OfflineCounted,
    /// Nobody waits for acknowledgments.
    ToldAtOnce,
    /// A session's deadline needs no acknowledgment.
    SessionUnacknowledged,
    /// A session's deadline is not checked before its connection's commands.
    OverdueRuns,
    /// A new primary grants without its grace period.
    GraceIgnored,
    /// Effects are replicated one by one, and not as one unit with the others of their step.
    UnitSplit,
    /// The manager is not notified that a connection with a group has closed.
    DepartureUntold,
    /// A message leaves in the middle of a transaction or a script.
    MessageInside,
    /// The event of an acquired lock is published after its messages have left.
    EventsForgotten,
    /// The engine attributes each request to another user.
    UserUnknown,
    /// The engine is not notified that a connection ended if a request with TELL waits for it and
    /// no hold is tied to it.
    AskerKept,
    /// `rlock.max-tell-ms` is ignored.
    TellUnbound,
    /// `rlock.max-tells` is ignored.
    TellsUncounted,
    /// Every third message is left out.
    MessageLeftOut,
    /// A request that waits for a message is replicated.
    WaitReplicated,
    /// A fault inside the engine.
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

/// The effects of a command that grants, each as separate bytes, for [`Fault::UnitSplit`].
pub(crate) fn grants_alone(effects: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let effects = snapshot::load_effects(effects, count).ok()?;
    let grants = |change: &Change<'_>| matches!(change, Change::Granted { .. });
    effects.iter().flat_map(|effect| &effect.changes).any(grants).then(|| {
        let bytes = effects.iter().map(|effect| {
            let mut bytes = Vec::new();
            snapshot::save_effect(effect.start, &effect.changes, &mut bytes);
            bytes
        });
        bytes.collect()
    })
}
