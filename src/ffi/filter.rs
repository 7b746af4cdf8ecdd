//! Keeps connections that are about to be closed from running any further command.

use super::*;

/// The server's handle of the filter; null while there is none.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(null_mut());

/// The caller whose command the server is about to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// This connection.
    Client(u64),
    /// Redis 7.0 does not report it; this is the size of the command's arguments in bytes.
    Unknown(usize),
}

/// Decides whose commands are stopped.
pub trait Closing: 'static {
    /// Whether the command that the server is about to execute must be stopped. Finding the size of
    /// its arguments may take a while.
    fn is_closing(caller: impl Fn() -> Caller) -> bool;
}

/// Whether the server reports whose command it is about to execute.
pub fn knows_callers() -> bool {
    // SAFETY: reading what initialisation has set.
    let client_of = unsafe { raw::RedisModule_CommandFilterGetClientId };
    client_of.is_some()
}

/// From now on, no command of a connection that `is_closing` is executed: the filter replaces it by
/// an unknown command. It costs every command a little, so end it with [`unsilence`].
pub fn silence<C: Closing>() {
    extern "C" fn on_command<C: Closing>(command: *mut raw::RedisModuleCommandFilterCtx) {
        // SAFETY: the server's own handle of this callback. The name is ours, and passed on.
        unsafe {
            let count = there(raw::RedisModule_CommandFilterArgsCount)(command);
            let caller = || match raw::RedisModule_CommandFilterGetClientId {
                Some(client_of) => Caller::Client(client_of(command)),
                None => {
                    let word = there(raw::RedisModule_CommandFilterArgGet);
                    let len = |place| bytes_of(word(command, place)).len();
                    Caller::Unknown((0..count).map(len).fold(0, usize::saturating_add))
                }
            };
            if !C::is_closing(caller) {
                return;
            }
            for place in (1..count).rev() {
                there(raw::RedisModule_CommandFilterArgDelete)(command, place);
            }
            let create = there(raw::RedisModule_CreateString);
            let nothing = create(null_mut(), NO_COMMAND.as_ptr().cast(), NO_COMMAND.len());
            there(raw::RedisModule_CommandFilterArgReplace)(command, 0, nothing);
        }
    }
    if FILTER.load(Relaxed).is_null() {
        // SAFETY: the detached context lives forever; the flag exempts our own calls.
        let filter = unsafe {
            let register = there(raw::RedisModule_RegisterCommandFilter);
            let flags = raw::REDISMODULE_CMDFILTER_NOSELF.cast_signed();
            register(DETACHED.load(Relaxed), Some(on_command::<C>), flags)
        };
        FILTER.store(filter, Relaxed);
    }
}

/// Ends [`silence`]. Must not be called by a command's handler.
pub fn unsilence() {
    let filter = FILTER.swap(null_mut(), Relaxed);
    if !filter.is_null() {
        // SAFETY: registered by `silence`, unregistered once.
        unsafe { there(raw::RedisModule_UnregisterCommandFilter)(DETACHED.load(Relaxed), filter) };
    }
}

/// The unknown command's name, which the connection sees in the error.
const NO_COMMAND: &str = "rlock.session-was-lost";
