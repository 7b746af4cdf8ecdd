//! Blocked connections.

use super::*;

/// What the server asks of the module about parked connections, each known by the number that
/// [`Ctx::block`] was given.
pub trait Waiting: 'static {
    /// Its reply is due: for the grant, or because its time is over. Must reply exactly once.
    fn reply(ctx: &Ctx, waiter: u64);
    /// It is gone, or was given an error in the place of its reply. May only remember it.
    fn gone(waiter: u64);
    /// The server has forgotten it. `is_lost`: the reply that it was given did not reach its
    /// output.
    fn over(waiter: u64, is_lost: bool);
}

/// A parked connection, until [`Blocked::answer`] or until the server says that it is gone.
pub struct Blocked(*mut raw::RedisModuleBlockedClient);

impl Blocked {
    /// Has the server ask for the connection's reply: in this call, or in this turn of its loop.
    pub fn answer(self) {
        // SAFETY: the handle is given away here, and dropped when the server says that the
        // connection is gone. Never called from `Waiting::reply` or `Waiting::gone`, where
        // it would recurse.
        unsafe { there(raw::RedisModule_UnblockClient)(self.0, null_mut()) };
    }
}

impl Ctx {
    /// Parks the caller at a key for `timeout_ms` milliseconds, for ever if 0. `None` where the
    /// server does not allow it. The server never grants by itself: its question whether the
    /// key is ready gets a no.
    pub fn block<W: Waiting>(
        &self,
        name: &Name<'_>,
        waiter: u64,
        timeout_ms: u64,
    ) -> Option<Blocked> {
        type Words = *mut *mut raw::RedisModuleString;
        extern "C" fn not_yet(_: *mut raw::RedisModuleCtx, _: Words, _: c_int) -> c_int {
            ERR
        }
        extern "C" fn reply<W: Waiting>(
            ctx: *mut raw::RedisModuleCtx,
            _: Words,
            _: c_int,
        ) -> c_int {
            W::reply(&Ctx(ctx), waiter_of(ctx));
            OK
        }
        extern "C" fn over<W: Waiting>(ctx: *mut raw::RedisModuleCtx, waiter: *mut c_void) {
            // Valkey 8 keeps the reply aside until now, and drops it if an error has replaced it
            // meanwhile; elsewhere the flag says nothing of the kind.
            // SAFETY: context of a parked connection that is being forgotten.
            let is_gone = unsafe { there(raw::RedisModule_BlockedClientDisconnected)(ctx) != 0 };
            W::over(waiter as u64, is_gone && keeps_replies_aside());
        }
        extern "C" fn gone<W: Waiting>(
            ctx: *mut raw::RedisModuleCtx,
            _: *mut raw::RedisModuleBlockedClient,
        ) {
            W::gone(waiter_of(ctx));
        }
        fn waiter_of(ctx: *mut raw::RedisModuleCtx) -> u64 {
            // SAFETY: context of a parked connection, whose private data is the number given below.
            unsafe { there(raw::RedisModule_GetBlockedClientPrivateData)(ctx) as u64 }
        }
        let (ms, mut keys) = (timeout_ms.cast_signed(), [name.string]);
        // SAFETY: context of a command, one key; the private data is a number and is never
        // followed.
        unsafe {
            let block = there(raw::RedisModule_BlockClientOnKeys);
            let (keys, data) = (keys.as_mut_ptr(), waiter as *mut c_void);
            let (not_yet, reply, over) =
                (Some(not_yet as _), Some(reply::<W> as _), Some(over::<W> as _));
            let client = block(self.0, not_yet, reply, over, ms, keys, 1, data);
            if client.is_null() {
                return None;
            }
            there(raw::RedisModule_SetDisconnectCallback)(client, Some(gone::<W>));
            Some(Blocked(client))
        }
    }
}
