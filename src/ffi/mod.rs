//! The interface to the server: the only folder with `unsafe`. Each function makes one API call,
//! with an argument for its soundness. Nothing is decided here, and no raw pointer leaves this
//! folder.
//!
//! Three arguments recur. *Context*: a [`Ctx`] wraps the pointer that the server passed to a
//! callback and lives no longer than that callback, or it is the module's own detached context,
//! which lives forever. *Thread*: the server calls all of this from its main thread, except `free`.
//! *Bytes*: pointer and length come from one Rust slice that outlives the call, and the server
//! copies what it keeps.
#![allow(unsafe_code)]

#[cfg(not(test))]
mod allocator;
mod blocked;
mod caller;
mod channels;
mod clients;
mod command_info;
mod context;
mod exclusive;
mod filter;
mod key;
mod key_positions;
mod register;
mod replicas;
mod reply;
mod server;
mod timers;
mod users;
mod value;

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

pub use blocked::{Blocked, Waiting};
pub use clients::{DatabaseChange, is_connection};
pub use exclusive::Exclusive;
pub use filter::{Caller, Closing, knows_callers, silence, unsilence};
pub use key::Key;
use libc::{c_char, c_int, c_void};
use redis_module::{ContextFlags, RedisValue, raw};
pub use replicas::before_sleep;
pub use server::ServerChange;
pub use timers::{after, epoch_us, when_readable};
pub use value::{Values, lock_count};

/// Memory comes from the server, so that it counts toward `maxmemory`. Outside a server, there is
/// none.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: allocator::Aligned = allocator::Aligned;

/// The module's own context, for work outside commands. Set once at load.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());
const OK: c_int = 0;
const ERR: c_int = 1;

/// Whether the server is Valkey and not Redis. Set once at load.
static IS_VALKEY: AtomicBool = AtomicBool::new(false);
/// Whether the server is a node of a cluster. Set once at load.
static IS_CLUSTER: AtomicBool = AtomicBool::new(false);
/// Whether the server sends the reply within the call that unblocks a connection, even while a
/// script runs: Redis before 7.4 and Valkey 7.2. Set once at load.
static TELLS_AT_ONCE: AtomicBool = AtomicBool::new(true);
/// Whether a key that comes outside of a command, and at which connections are blocked, makes one
/// of them the current client for good, so that the server uses its memory after it was freed:
/// Redis 7.0. Set once at load.
static LEAVES_WAITER_CURRENT: AtomicBool = AtomicBool::new(true);
/// Whether the server keeps the reply to a blocked connection aside for a while, and may replace
/// it: Valkey 8 and later. Set once at load.
static KEEPS_REPLIES_ASIDE: AtomicBool = AtomicBool::new(false);
/// Whether the server may delete a key within the millisecond of its expiry, as the active expiry
/// of Redis 8 does, and not only after it. Set once at load.
static EXPIRES_WITHIN_ITS_MS: AtomicBool = AtomicBool::new(false);
/// Whether the module is served by Valkey 9 or later. Set once at load.
static IS_VALKEY_9: AtomicBool = AtomicBool::new(false);
/// Whether an event of another database than the client's leaves the client there, so that `MOVE`
/// changes the selected database of its client: Valkey from 8.1 on, up to some releases of 9.1. Set
/// once at load.
static EVENTS_SELECT: AtomicBool = AtomicBool::new(false);

/// A command's handler.
pub trait Handler: 'static {
    /// Must reply exactly once.
    fn run(ctx: &Ctx, arguments: &Argv<'_>);
}

/// Every function used here without a check exists since Redis 7.0; loading checks that version
/// first.
fn there<F>(function: Option<F>) -> F {
    function.unwrap_or_else(|| std::process::abort())
}

/// The server's context of one callback.
pub struct Ctx(*mut raw::RedisModuleCtx);

/// A key's name: the server's string and its bytes.
pub struct Name<'a> {
    string: *mut raw::RedisModuleString,
    bytes: &'a [u8],
}

impl rlock_engine::KeyName for Name<'_> {
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
}

/// The arguments of a command, its name first.
pub struct Argv<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Argv<'a> {
    /// The arguments after the command's name.
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let words = self.0.split_first().map_or(&[][..], |(_, words)| words);
        // SAFETY: `Argv` borrows the strings of a running command.
        words.iter().map(|string| unsafe { bytes_of(*string) })
    }

    /// The first argument as a key's name; `bytes` are its bytes.
    pub fn name(&self, bytes: &'a [u8]) -> Option<Name<'a>> {
        self.0.get(1).map(|string| Name { string: *string, bytes })
    }

    /// The names of `count` keys, from this argument on.
    pub fn names(&self, first: usize, count: usize) -> Vec<Name<'a>> {
        let strings = self.0.iter().skip(first).take(count);
        // SAFETY: `Argv` borrows the strings of a running command.
        let name = |string| Name { string, bytes: unsafe { bytes_of(string) } };
        strings.copied().map(name).collect()
    }
}

/// The bytes of a string, which do not move.
///
/// # Safety
/// The string belongs to the server, which keeps it for `'a`.
unsafe fn bytes_of<'a>(string: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    unsafe {
        let start = there(raw::RedisModule_StringPtrLen)(string, &raw mut len);
        if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), len) }
    }
}

/// Reads a reply as the server wrote it, and frees it. `None` if there is none, or if it is
/// another one.
///
/// # Safety
/// A reply of the server that nobody else has, or null.
unsafe fn read_reply<T>(
    reply: *mut raw::RedisModuleCallReply,
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    if reply.is_null() {
        return None;
    }
    let mut len = 0;
    // SAFETY: the caller's promise; the bytes live as long as the reply, which is freed after the
    // last use.
    unsafe {
        let start = there(raw::RedisModule_CallReplyProto)(reply, &raw mut len);
        let bytes = (!start.is_null()).then(|| std::slice::from_raw_parts(start.cast(), len));
        let result = bytes.and_then(read);
        there(raw::RedisModule_FreeCallReply)(reply);
        result
    }
}

/// Whether the server is Valkey and not Redis.
pub fn is_valkey() -> bool {
    IS_VALKEY.load(Relaxed)
}

/// Whether the server is a node of a cluster.
pub fn is_cluster() -> bool {
    IS_CLUSTER.load(Relaxed)
}

/// The text of a reply; `None` if it is not text.
pub fn text_of(reply: RedisValue) -> Option<String> {
    match reply {
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => Some(text),
        RedisValue::StringBuffer(text) => String::from_utf8(text).ok(),
        _ => None,
    }
}

/// Our texts contain no NUL: names are escaped.
pub fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

#[unsafe(no_mangle)]
extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's own context; the name is static.
    let status = unsafe {
        let apiver = raw::REDISMODULE_APIVER_1.cast_signed();
        raw::Export_RedisModule_Init(ctx, c"rlock".as_ptr(), crate::VERSION, apiver)
    };
    if status != OK {
        return status;
    }
    let ctx = Ctx(ctx);
    // SAFETY: reading what initialisation has set. Both came with Redis 7.0 and all that is used
    // here is older.
    let (info, configs) =
        unsafe { (raw::RedisModule_SetCommandInfo, raw::RedisModule_LoadConfigs) };
    if info.is_none() || configs.is_none() {
        ctx.warn("this server is too old: Redis 7.0 or later, or Valkey, is required");
        return ERR;
    }
    let mut valkeys: *mut c_void = null_mut();
    // SAFETY: the server looks the name up and writes a function's address, or nothing, to the
    // given place.
    let found = unsafe {
        let place = (&raw mut valkeys).cast();
        there(raw::RedisModule_GetApi)(c"ValkeyModule_Call".as_ptr(), place)
    };
    IS_VALKEY.store(found == OK, Relaxed);
    let version = ctx.server_version();
    TELLS_AT_ONCE.store(version < (7, 4), Relaxed);
    LEAVES_WAITER_CURRENT.store(version < (7, 2), Relaxed);
    KEEPS_REPLIES_ASIDE.store(is_valkey() && version >= (8, 0), Relaxed);
    EXPIRES_WITHIN_ITS_MS.store(!is_valkey() && version >= (8, 0), Relaxed);
    IS_VALKEY_9.store(is_valkey() && version >= (9, 0), Relaxed);
    EVENTS_SELECT.store(is_valkey() && ((8, 1)..(9, 2)).contains(&version), Relaxed);
    IS_CLUSTER.store(ctx.flags().contains(ContextFlags::CLUSTER), Relaxed);
    // SAFETY: the server passes `argc` strings that live as long as this call.
    let arguments: Vec<&[u8]> =
        unsafe { slice(argv, argc).iter().map(|string| bytes_of(*string)).collect() };
    match crate::load(&ctx, &arguments) {
        Ok(()) => OK,
        Err(why) => {
            ctx.warn(&format!("the module is not loaded: {why}"));
            ERR
        }
    }
}

/// # Safety
/// `argv` points to `argc` strings of the server that outlive `'a`.
unsafe fn slice<'a, T>(argv: *mut T, argc: c_int) -> &'a [T] {
    match usize::try_from(argc) {
        Ok(len) if !argv.is_null() => unsafe { std::slice::from_raw_parts(argv, len) },
        _ => &[],
    }
}
