//! Blocked connections.

use smallvec::SmallVec;

use super::*;

/// Whether the module is making the server ask for a reply now. If the server asks because of
/// `CLIENT UNBLOCK`, it keeps nothing aside.
static IS_ANSWERING: AtomicBool = AtomicBool::new(false);

/// The server's callbacks for blocked connections, identified by the number passed to
/// [`Ctx::block`].
pub trait Waiting: 'static {
    /// A value may have appeared at its key. It may only record that: the server reports it for
    /// every connection that is blocked there.
    fn on_key_ready(waiter: u64);
    /// Its reply is due: it was granted, or it timed out. Must reply exactly once.
    fn reply(ctx: &Ctx, waiter: u64);
    /// It departed, or got an error instead of its reply. It may only record that.
    fn on_disconnect(waiter: u64);
    /// From now on, the connection may have read its reply; with `is_lost`, it never will. The
    /// server calls this at the latest when it unblocks the connection, and perhaps twice.
    fn on_reply_flushed(waiter: u64, is_lost: bool);
}

/// A blocked connection, until [`Blocked::answer`] or until the server reports that it departed.
pub struct Blocked(*mut raw::RedisModuleBlockedClient);

impl Blocked {
    /// Makes the server ask for the connection's reply, in this call or in this loop iteration.
    pub fn answer(self) {
        IS_ANSWERING.store(true, Relaxed);
        // SAFETY: the handle is passed on here, and dropped when the server reports that the
        // connection departed. Never called from `Waiting::reply` or `Waiting::on_disconnect`,
        // where it would recurse.
        unsafe { there(raw::RedisModule_UnblockClient)(self.0, null_mut()) };
        IS_ANSWERING.store(false, Relaxed);
    }
}

impl Ctx {
    /// Whether connections may be blocked only at names of which none ever becomes a key.
    pub fn blocks_aside() -> bool {
        LEAVES_WAITER_CURRENT.load(Relaxed)
    }

    /// Blocks the caller on these keys. `None` if the server does not allow it. The server never
    /// serves the connection by itself: the callback always answers that the key is not ready. Nor
    /// does the server end the wait: its own timeout would make a hand-off a tenth slower, and the
    /// module's timers serve the same purpose.
    pub fn block<W: Waiting>(&self, names: &[Name<'_>], waiter: u64) -> Option<Blocked> {
        const NEVER: i64 = 0;
        type Words = *mut *mut raw::RedisModuleString;
        extern "C" fn not_yet<W: Waiting>(
            ctx: *mut raw::RedisModuleCtx,
            _: Words,
            _: c_int,
        ) -> c_int {
            W::on_key_ready(waiter_of(ctx));
            ERR
        }
        extern "C" fn reply<W: Waiting>(
            ctx: *mut raw::RedisModuleCtx,
            _: Words,
            _: c_int,
        ) -> c_int {
            let waiter = waiter_of(ctx);
            let is_kept_aside = KEEPS_REPLIES_ASIDE.load(Relaxed) && IS_ANSWERING.load(Relaxed);
            W::reply(&Ctx(ctx), waiter);
            // The reply is in the connection's output, which the server may send before it unblocks
            // the connection.
            if !is_kept_aside {
                W::on_reply_flushed(waiter, false);
            }
            OK
        }
        extern "C" fn over<W: Waiting>(ctx: *mut raw::RedisModuleCtx, waiter: *mut c_void) {
            // Valkey 8 keeps the reply aside until now, and drops it if an error has replaced it
            // meanwhile; elsewhere the flag has another meaning.
            // SAFETY: context of a blocked connection that is being forgotten.
            let is_gone = unsafe { there(raw::RedisModule_BlockedClientDisconnected)(ctx) != 0 };
            W::on_reply_flushed(waiter as u64, is_gone && KEEPS_REPLIES_ASIDE.load(Relaxed));
        }
        extern "C" fn gone<W: Waiting>(
            ctx: *mut raw::RedisModuleCtx,
            _: *mut raw::RedisModuleBlockedClient,
        ) {
            W::on_disconnect(waiter_of(ctx));
        }
        fn waiter_of(ctx: *mut raw::RedisModuleCtx) -> u64 {
            // SAFETY: context of a blocked connection, whose private data is the number given
            // below.
            unsafe { there(raw::RedisModule_GetBlockedClientPrivateData)(ctx) as u64 }
        }
        let mut keys: SmallVec<[*mut raw::RedisModuleString; 1]> =
            names.iter().map(|name| name.string).collect();
        let count = c_int::try_from(keys.len()).unwrap_or(0);
        // SAFETY: context of a command, as many keys as are counted; the private data is a number
        // and is never followed.
        unsafe {
            let block = there(raw::RedisModule_BlockClientOnKeys);
            let (keys, data) = (keys.as_mut_ptr(), waiter as *mut c_void);
            let (not_yet, reply, over) =
                (Some(not_yet::<W> as _), Some(reply::<W> as _), Some(over::<W> as _));
            let client = block(self.0, not_yet, reply, over, NEVER, keys, count, data);
            if client.is_null() {
                return None;
            }
            there(raw::RedisModule_SetDisconnectCallback)(client, Some(gone::<W>));
            Some(Blocked(client))
        }
    }
}
