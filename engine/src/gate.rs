//! The gate in front of everything that the engine writes outside a command.

use crate::host::{Gate, Host};

/// Whether this key may be written now, outside a command: only if the server would accept the
/// same write from an ordinary client.
pub(crate) fn of<H: Host>(host: &H, name: &H::Name<'_>) -> Gate {
    let decides = host.state(|state| state.manager.decides());
    // While the server is paused, it asserts that nothing is written.
    if !decides || host.is_paused() { Gate::Shut } else { host.gate_of(name) }
}
