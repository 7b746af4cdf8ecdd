//! The gate in front of everything that the module writes outside a command.

use crate::ffi::{Ctx, Gate, Name};
use crate::state;

/// Whether this key may be written now, outside a command: only if the server would accept the same
/// write from an ordinary client.
pub fn of(ctx: &Ctx, name: &Name<'_>) -> Gate {
    let decides = state::with(|state| state.manager.decides());
    // The server asserts that nothing is written while it is paused.
    if !decides || ctx.is_paused() { Gate::Shut } else { ctx.gate_of(name) }
}
