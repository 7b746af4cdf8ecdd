//! Faults in the engine itself, to show that the tests detect them.

/// A fault that a test plants in the engine: [`crate::Host::has_fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A replica does not record the tokens that it receives.
    TokensUnseen,
    /// A hold is not ended although replicas did not acknowledge it.
    RevocationForgotten,
    /// Observers are not notified that the lock changed.
    ObserversForgotten,
    /// The last of several locks is not entered.
    LockLeftOut,
    /// The last of several holds is not renewed.
    RenewalLeftOut,
    /// Groups do not move on.
    GroupsForgotten,
    /// A grant of several locks is reported without the acknowledgments that it needs.
    SeveralToldAtOnce,
    /// A grant is made or reported without a check that somebody listens.
    ListenersNotAsked,
    /// When a message is due, the permission for the channel is not checked again.
    ChannelRightsForgotten,
    /// A grant in a message that was sent is revoked.
    MessageUnheard,
    /// A message is sent twice.
    ToldTwice,
    /// When a grant of several locks is revoked, one of them remains.
    PartNotRevoked,
}
