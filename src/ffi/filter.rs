//! Keeps connections that are about to be closed from running any further command.

use super::*;

/// The server's handle of the filter; null while there is none.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(null_mut());

/// From now on no command of a connection that `is_closing` runs: the server finds a command that
/// there is not in its place. Costs every command a little, so it is to be ended soon. False where
/// the server does not say whose command it is: Redis 7.0.
pub fn silence<C: Closing>() -> bool {
    extern "C" fn on_command<C: Closing>(command: *mut raw::RedisModuleCommandFilterCtx) {
        // SAFETY: the server's own handle of this callback; `silence` has seen that the function is
        // there. The name is ours, and given away.
        unsafe {
            let id = there(raw::RedisModule_CommandFilterGetClientId)(command);
            if !C::is_closing(id) {
                return;
            }
            let count = there(raw::RedisModule_CommandFilterArgsCount)(command);
            for place in (1..count).rev() {
                there(raw::RedisModule_CommandFilterArgDelete)(command, place);
            }
            let create = there(raw::RedisModule_CreateString);
            let nothing = create(null_mut(), NO_COMMAND.as_ptr().cast(), NO_COMMAND.len());
            there(raw::RedisModule_CommandFilterArgReplace)(command, 0, nothing);
        }
    }
    // SAFETY: the detached context lives for ever; the flag says nothing of our own calls.
    unsafe {
        let client_of = raw::RedisModule_CommandFilterGetClientId;
        if client_of.is_none() {
            return false;
        }
        if FILTER.load(Relaxed).is_null() {
            let register = there(raw::RedisModule_RegisterCommandFilter);
            let flags = raw::REDISMODULE_CMDFILTER_NOSELF.cast_signed();
            let filter = register(DETACHED.load(Relaxed), Some(on_command::<C>), flags);
            FILTER.store(filter, Relaxed);
        }
    }
    true
}

/// Whoever asked for [`silence`] has closed what was to be closed. Not from a command's handler.
pub fn unsilence() {
    let filter = FILTER.swap(null_mut(), Relaxed);
    if !filter.is_null() {
        // SAFETY: registered by `silence`, unregistered once.
        unsafe { there(raw::RedisModule_UnregisterCommandFilter)(DETACHED.load(Relaxed), filter) };
    }
}

/// Told to the connection that goes on, as the name of a command that there is not.
const NO_COMMAND: &str = "rlock.session-was-lost";

/// Who is to be silenced.
pub trait Closing: 'static {
    /// No further command of this connection may run.
    fn is_closing(client: u64) -> bool;
}
