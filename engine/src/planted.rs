//! Faults in the engine itself, to show that the tests find them.

/// A fault that a test plants in the engine: [`crate::Host::has_fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A replica does not note the tokens that it hears of.
    TokensUnseen,
    /// The end of a hold that replicas did not acknowledge is forgotten.
    RevocationForgotten,
    /// Observers are not told that the lock changed.
    ObserversForgotten,
    /// The last of several locks is not entered.
    LockLeftOut,
    /// The last of several holds is not renewed.
    RenewalLeftOut,
    /// Groups do not move on.
    GroupsForgotten,
    /// A grant of several locks is told without the acknowledgments that it needs.
    SeveralToldAtOnce,
    /// Nobody asks whether somebody listens before a grant is made or told.
    ListenersNotAsked,
    /// The right to the channel is not asked for again when a message is due.
    ChannelRightsForgotten,
    /// What was granted in a message that was sent is revoked.
    MessageUnheard,
    /// A message is sent twice.
    ToldTwice,
    /// Where a grant of several locks is revoked, one of them stays.
    PartNotRevoked,
}
