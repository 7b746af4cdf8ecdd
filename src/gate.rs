//! The gate in front of whatever the module writes outside of a command.

use crate::ffi::{Ctx, Gate, Name};
use crate::state;

/// Whether this key may be written now, outside of a command: where the server would refuse the
/// same write to an ordinary client, it may not.
pub fn of(ctx: &Ctx, name: &Name<'_>) -> Gate {
    let decides = state::with(|state| state.manager.decides());
    // The server asserts that nothing is written while it is paused.
    if !decides || ctx.is_paused() { Gate::Shut } else { ctx.gate_of(name) }
}
