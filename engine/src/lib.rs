//! Carries out what `rlock_core` decides: opens keys, saves, replicates, publishes, replies to
//! blocked connections, and does what comes due.
//!
//! The engine is written once and is generic over a [`Host`]. The server module, the simulated
//! server and the tests' map of keys are hosts, so the tests run the code that ships.
//!
//! ```text
//! a command     commands ─▶ carry_out ─┬▶ replicate, publish
//!                  │                   └▶ answers ─▶ the host asks for the reply: blocked::reply
//!                  └▶ blocked (the caller waits)
//! a timer       run_deferred ─▶ sweep ─▶ carry_out …
//! a callback    events ─▶ the manager notes it, a timer is set
//! before sleep  acks ─▶ answers, publish
//! ```

pub mod acks;
pub mod answers;
pub mod blocked;
pub mod carry_out;
pub mod commands;
pub mod events;
mod gate;
mod given_up;
mod groups;
pub mod happening;
pub mod held_back;
pub mod host;
mod observers;
pub mod open_locks;
pub mod planted;
pub mod protocol;
pub mod publish;
pub mod replay;
pub mod reply;
pub mod reports;
pub mod several;
pub mod several_request;
mod sink;
mod slot;
pub mod state;
pub mod sweep;
pub mod timers;
pub mod unit;
mod unsaved;

pub use happening::{Done, Happening};
pub use host::{
    Caller, Channels, Content, Deferred, During, Gate, Host, KeyName, Keys, OpenKey, Replication,
    Settings,
};
pub use planted::PlantedFault;
pub use state::State;

/// Does the work that was deferred with [`Host::defer`].
pub fn run_deferred<H: Host>(host: &H, work: Deferred) {
    match work {
        Deferred::Sweep => sweep::come(host),
        Deferred::Retry => sweep::retry(host),
        Deferred::Observers => observers::come(host),
        Deferred::Answer => answers::send_late(host),
        Deferred::Search => blocked::search_unsearched(host),
        Deferred::Unsubscribe => acks::unsubscribe_if_idle(host),
        Deferred::Greet => acks::request_first_ack(host),
    }
}
