//! The border to the server: the only `unsafe` of the project, one API call per function with the
//! argument for its soundness. Nothing is decided here.
//!
//! Three arguments recur. *Context*: a [`Ctx`] wraps the pointer that the server gave to a callback
//! and lives no longer than that callback, or it is the module's own detached context, which lives
//! for ever. *Thread*: the server calls all of this from its main thread, but for `free`. *Bytes*:
//! pointer and length come from one Rust slice that outlives the call, and the server copies what
//! it keeps.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io::Error;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, Ordering::Relaxed};

use libc::{c_char, c_int, c_void};
use redis_module::{ContextFlags, raw};
use redis_module_macros_internals::api;
use rlock_core::grammar::{Access, Command};
use rlock_core::{Lock, snapshot};

use crate::describe::Info;

/// Memory comes from the server, so that it counts towards `maxmemory`. Outside of a server there
/// is none.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// The type of a lock's key, set once at load.
static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());
/// The module's own context, for what happens outside of every command. Set once at load.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());
const OK: c_int = 0;
const ERR: c_int = 1;
/// `REDISMODULE_KEYTYPE_EMPTY`
const NO_KEY: c_int = 0;

/// The server is Valkey and not Redis. Set once at load.
static IS_VALKEY: AtomicBool = AtomicBool::new(false);
/// The server is a node of a cluster. Set once at load.
static IS_CLUSTER: AtomicBool = AtomicBool::new(false);
/// Locks that the server keeps for us.
static LOCKS: AtomicI64 = AtomicI64::new(0);

/// What the server asks of the module about its values.
pub trait Values: 'static {
    /// A lock read from a snapshot; `None` refuses it. `is_restore`: a client brought it to a
    /// primary.
    fn decode(bytes: &[u8], is_restore: bool) -> Option<Lock>;
    /// A lock leaves its name. Called in the midst of anything: may only remember it.
    fn unlinked(db: c_int, key: &[u8], lock: &Lock);
    /// The server expired or evicted a key, of whatever type. May only remember it.
    fn lost(db: c_int, key: &[u8], is_evicted: bool);
}

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

/// A command's handler.
pub trait Handler: 'static {
    /// Must reply exactly once.
    fn run(ctx: &Ctx, arguments: &Arguments<'_>);
}

/// Every function used here without asking exists since Redis 7.0, which loading checks first.
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

impl<'a> Name<'a> {
    /// The name's bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The arguments of a command, its name first.
pub struct Arguments<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Arguments<'a> {
    /// What follows the command's name.
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.0.iter().skip(1).map(|string| bytes_of(*string))
    }

    /// The first argument as a key's name.
    pub fn name(&self) -> Option<Name<'a>> {
        self.0.get(1).map(|string| Name { string: *string, bytes: bytes_of(*string) })
    }
}

/// The bytes of a string that the server keeps for the length of the callback that it was given to.
fn bytes_of<'a>(string: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the server's string is alive while the callback runs, and its bytes do not move; the
    // callers above and below hand the slice to nothing that outlives the callback.
    unsafe {
        let start = there(raw::RedisModule_StringPtrLen)(string, &raw mut len);
        if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), len) }
    }
}

/// What stands at a key.
pub enum Content<'k> {
    /// Nothing.
    Missing,
    /// A lock.
    Lock(&'k mut Lock),
    /// Something else.
    Other,
}

/// Where a key's slot is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// By this server.
    Here,
    /// By another one, or this one would send a client there for this very key.
    Elsewhere,
    /// By nobody for now: the cluster is down, as this server sees it.
    Nowhere,
}

/// An open key; closed when dropped.
pub struct Key<'c> {
    key: *mut raw::RedisModuleKey,
    of: PhantomData<&'c Ctx>,
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `Ctx::open`, closed only here. A null key is allowed.
        unsafe { there(raw::RedisModule_CloseKey)(self.key) }
    }
}

impl Key<'_> {
    /// What stands at the key. The borrow must end before anything else is asked of the server.
    pub fn content(&mut self) -> Content<'_> {
        if self.key.is_null() {
            return Content::Missing;
        }
        // SAFETY: the key is open. A value of our type is a `Box<Lock>` that `set` or `rdb_load`
        // gave away; nothing else refers to it while this key is borrowed, because the
        // server runs one command at a time.
        unsafe {
            if there(raw::RedisModule_KeyType)(self.key) == NO_KEY {
                return Content::Missing;
            }
            if there(raw::RedisModule_ModuleTypeGetType)(self.key) != TYPE.load(Relaxed) {
                return Content::Other;
            }
            let value = there(raw::RedisModule_ModuleTypeGetValue)(self.key);
            value.cast::<Lock>().as_mut().map_or(Content::Other, Content::Lock)
        }
    }

    /// The lock at the key, `free` where nothing stands; `None` where something else does.
    pub fn lock<'k>(&'k mut self, free: &'k Lock) -> Option<&'k Lock> {
        match self.content() {
            Content::Missing => Some(free),
            Content::Lock(lock) => Some(lock),
            Content::Other => None,
        }
    }

    /// Puts a lock at the key, in the place of whatever stands there.
    pub fn set(&mut self, lock: Lock) {
        let value = give(lock);
        // SAFETY: the key is open for writing and the value is a `Box<Lock>`, as `TYPE` promises.
        let status = unsafe {
            let set = there(raw::RedisModule_ModuleTypeSetValue);
            set(self.key, TYPE.load(Relaxed), value)
        };
        if status != OK {
            take(value);
        }
    }

    /// Where the lock at the key is in memory, as nothing else is; 0 where there is none.
    pub fn address(&self) -> usize {
        // SAFETY: the key is open, or null, which the server answers with null.
        unsafe { there(raw::RedisModule_ModuleTypeGetValue)(self.key).addr() }
    }

    /// Deletes the key.
    pub fn delete(&mut self) {
        // SAFETY: the key is open for writing; a missing one is left alone by the server.
        unsafe { there(raw::RedisModule_DeleteKey)(self.key) };
    }

    /// When the key expires, in milliseconds since the Unix epoch; negative where it does not.
    pub fn expires_at(&self) -> i64 {
        // SAFETY: the key is open and holds a value.
        unsafe { there(raw::RedisModule_GetAbsExpire)(self.key) }
    }

    /// Sets when the key expires, in milliseconds since the Unix epoch.
    pub fn expire_at(&mut self, at_ms: u64) {
        // SAFETY: the key is open for writing and holds a value.
        unsafe { there(raw::RedisModule_SetAbsExpire)(self.key, at_ms.cast_signed()) };
    }
}

impl Ctx {
    /// Opens a key; for reading only, it stays null where there is none.
    pub fn open(&self, name: &Name<'_>, access: Access) -> Key<'_> {
        let mode = match access {
            Access::Writes => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
            _ => raw::REDISMODULE_READ,
        };
        // SAFETY: context and name are the server's own and alive.
        let key =
            unsafe { there(raw::RedisModule_OpenKey)(self.0, name.string, mode.cast_signed()) };
        Key { key: key.cast(), of: PhantomData }
    }

    /// Hands `RLOCK.APPLY key payload` to replicas and the append-only file.
    pub fn replicate(&self, name: &Name<'_>, payload: &[u8]) {
        // SAFETY: context; the format says a server's string, then bytes with their length, as
        // given.
        unsafe {
            let replicate = there(raw::RedisModule_Replicate);
            let (start, len) = (payload.as_ptr(), payload.len());
            replicate(self.0, c"RLOCK.APPLY".as_ptr(), c"sb".as_ptr(), name.string, start, len)
        };
    }

    /// Hands the command that is being carried out to replicas and the append-only file as it came.
    pub fn replicate_as_it_came(&self) {
        raw::replicate_verbatim(self.0);
    }

    /// Tells WATCH and client-side caches that the key changed.
    pub fn signal_modified(&self, name: &Name<'_>) {
        // SAFETY: context and name are the server's own and alive.
        unsafe { there(raw::RedisModule_SignalModifiedKey)(self.0, name.string) };
    }

    /// Publishes a keyspace notification of class `d`.
    pub fn notify(&self, event: &CStr, name: &Name<'_>) {
        // SAFETY: context with a client; the server copies both strings.
        unsafe {
            let notify = there(raw::RedisModule_NotifyKeyspaceEvent);
            notify(self.0, raw::REDISMODULE_NOTIFY_MODULE, event.as_ptr(), name.string)
        };
    }

    /// Does `work` in database `db` with the name of a key that no command gave.
    pub fn with_name<T>(&self, db: c_int, key: &[u8], work: impl FnOnce(&Name<'_>) -> T) -> T {
        // SAFETY: context; bytes. The string is ours and freed here, after the last use.
        unsafe {
            let before = there(raw::RedisModule_GetSelectedDb)(self.0);
            there(raw::RedisModule_SelectDb)(self.0, db);
            let create = there(raw::RedisModule_CreateString);
            let string = create(self.0, key.as_ptr().cast(), key.len());
            let result = work(&Name { string, bytes: key });
            there(raw::RedisModule_FreeString)(self.0, string);
            there(raw::RedisModule_SelectDb)(self.0, before);
            result
        }
    }

    /// The database that the client selected.
    pub fn selected_db(&self) -> c_int {
        // SAFETY: context.
        unsafe { there(raw::RedisModule_GetSelectedDb)(self.0) }
    }

    /// What the server says of this context: costs it some work, so only where it is needed.
    pub fn flags(&self) -> ContextFlags {
        self.wrapped().get_flags()
    }

    /// Nothing may be written now: the server asserts it.
    pub fn is_paused(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { there(raw::RedisModule_AvoidReplicaTraffic)() != 0 }
    }

    /// The caller cannot be parked: it is a script, a transaction, another module, or no client at
    /// all.
    pub fn denies_blocking(&self) -> bool {
        let denied = ContextFlags::DENY_BLOCKING | ContextFlags::REPLICATED | ContextFlags::LOADING;
        self.flags().intersects(denied)
    }

    /// Where the key is served: here, but for a node of a cluster.
    pub fn slot_of(&self, name: &Name<'_>) -> Slot {
        if !is_cluster() {
            return Slot::Here;
        }
        // A write that changes nothing: a cluster that is down may still be read.
        // SAFETY: context; the format says two strings of the server's. The server refuses what it
        // does not serve with a null reply, and says why in `errno`; another reply is ours to free.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let (command, same) = (c"RENAMENX".as_ptr(), name.string);
            let reply = call(self.0, command, c"ss".as_ptr(), same, same);
            if !reply.is_null() {
                there(raw::RedisModule_FreeCallReply)(reply);
                return Slot::Here;
            }
        }
        match Error::last_os_error().raw_os_error() {
            Some(libc::EPERM) => Slot::Elsewhere,
            _ => Slot::Nowhere,
        }
    }

    /// The command came from this server's primary, from the node that a slot is coming from, or
    /// from its own file, and not from a client.
    pub fn is_from_primary(&self) -> bool {
        self.flags().intersects(ContextFlags::REPLICATED | ContextFlags::LOADING)
    }

    /// Writes a warning to the server's log.
    pub fn warn(&self, text: &str) {
        let text = c_string(text);
        // SAFETY: context; the text is an argument of the format, never the format.
        unsafe {
            let log = there(raw::RedisModule_Log);
            log(self.0, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr());
        }
    }

    /// The pointer itself, for what the `redis-module` crate wraps safely.
    pub fn raw(&self) -> *mut raw::RedisModuleCtx {
        self.0
    }

    /// The context as the `redis-module` crate has it.
    pub fn wrapped(&self) -> redis_module::Context {
        redis_module::Context::new(self.0)
    }
}

/// The server is Valkey and not Redis.
pub fn is_valkey() -> bool {
    IS_VALKEY.load(Relaxed)
}

/// The server is a node of a cluster.
pub fn is_cluster() -> bool {
    IS_CLUSTER.load(Relaxed)
}

/// Locks that the server keeps: at keys, or on their way to being freed.
pub fn lock_count() -> u64 {
    u64::try_from(LOCKS.load(Relaxed)).unwrap_or(0)
}

/// Calls `work` after `ms` milliseconds (0: in this turn of the server's loop or the next), in a
/// context of its own.
pub fn after(ms: u64, work: fn(&Ctx)) {
    extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, work: *mut c_void) {
        // SAFETY: `work` is the pointer that `after` gave, of this very type.
        let work = unsafe { std::mem::transmute::<*mut c_void, fn(&Ctx)>(work) };
        work(&Ctx(ctx));
    }
    // SAFETY: the detached context lives for ever; a function pointer needs no freeing.
    unsafe {
        let create = there(raw::RedisModule_CreateTimer);
        create(DETACHED.load(Relaxed), ms.cast_signed(), Some(on_timer), work as *mut c_void);
    }
}

/// Calls `work` in every turn of the server's loop in which `file` can be read, also while the
/// server is busy with a script: it may do no more than to read and to set a timer. `file` must
/// stay open.
///
/// # Errors
/// The server listens to as many files as `maxclients` allows.
pub fn when_readable(file: &impl AsRawFd, work: fn()) -> Result<(), String> {
    extern "C" fn on_readable(_: c_int, work: *mut c_void, _: c_int) {
        // SAFETY: `work` is the pointer that `when_readable` gave, of this very type.
        let work = unsafe { std::mem::transmute::<*mut c_void, fn()>(work) };
        work();
    }
    let readable = raw::REDISMODULE_EVENTLOOP_READABLE.cast_signed();
    // SAFETY: a number, and a function pointer that needs no freeing. The server checks the number.
    let code = unsafe {
        let add = there(raw::RedisModule_EventLoopAdd);
        add(file.as_raw_fd(), readable, Some(on_readable), work as *mut c_void)
    };
    if code == OK { Ok(()) } else { Err(format!("no event: {}", Error::last_os_error())) }
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
            // Valkey keeps the reply aside until now, and drops it if an error has replaced it
            // meanwhile; elsewhere the flag says nothing of the kind.
            // SAFETY: context of a parked connection that is being forgotten.
            let is_gone = unsafe { there(raw::RedisModule_BlockedClientDisconnected)(ctx) != 0 };
            W::over(waiter as u64, is_gone && is_valkey());
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

    /// The caller's connection, if it is a real one and not a script's or another module's.
    pub fn client(&self) -> Option<u64> {
        let flags = self.flags();
        let is_called =
            flags.contains(ContextFlags::DENY_BLOCKING) && !flags.contains(ContextFlags::MULTI);
        if is_called || flags.contains(ContextFlags::LUA) {
            return None;
        }
        // SAFETY: context; without a place for the answer the server only says whether it knows the
        // number.
        unsafe {
            let id = there(raw::RedisModule_GetClientId)(self.0);
            let known = there(raw::RedisModule_GetClientInfoById)(null_mut(), id);
            (known == OK).then_some(id)
        }
    }

    /// Closes a connection; the caller's own after its reply.
    pub fn close(&self, client: u64) {
        // SAFETY: context; an unknown connection is refused by the server.
        unsafe { there(raw::RedisModule_DeauthenticateAndCloseClient)(self.0, client) };
    }

    /// Has the server say which connections end.
    pub fn watch_connections(&self, ended: fn(u64)) {
        static ENDED: std::sync::OnceLock<fn(u64)> = std::sync::OnceLock::new();
        extern "C" fn on_change(
            _: *mut raw::RedisModuleCtx,
            _: raw::RedisModuleEvent,
            what: u64,
            data: *mut c_void,
        ) {
            // SAFETY: with this event the server gives its description of the connection, alive for
            // the call.
            let client = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() };
            if what == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED
                && let (Some(client), Some(ended)) = (client, ENDED.get())
            {
                ended(client.id);
            }
        }
        ENDED.get_or_init(|| ended);
        let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_CLIENT_CHANGE, dataver: 1 };
        raw::subscribe_to_server_event(self.0, event, Some(on_change));
    }
}

/// No text of ours has a NUL: names are escaped.
pub fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Gives a lock to the server.
fn give(lock: Lock) -> *mut c_void {
    LOCKS.fetch_add(1, Relaxed);
    Box::into_raw(Box::new(lock)).cast()
}

/// Takes a lock back. May run in another thread of the server, for a lock that nobody can reach any
/// more.
fn take(value: *mut c_void) {
    LOCKS.fetch_sub(1, Relaxed);
    // SAFETY: `value` came from `give`, and the server gives it back once. A lock holds no server
    // memory but what the allocator gave, so the thread does not matter.
    drop(unsafe { Box::from_raw(value.cast::<Lock>()) });
}

/// What the server calls for keys of our type.
mod value {
    use super::*;

    pub extern "C" fn rdb_load<V: Values>(
        io: *mut raw::RedisModuleIO,
        encver: c_int,
    ) -> *mut c_void {
        if encver != super::ENCODING {
            return null_mut();
        }
        let Ok(bytes) = raw::load_string_buffer(io) else { return null_mut() };
        // SAFETY: the server's own handle of this load; the context that it gives lives as long.
        let flags = unsafe { Ctx(there(raw::RedisModule_GetContextFromIO)(io)) }.flags();
        let is_restore =
            flags.contains(ContextFlags::MASTER) && !flags.contains(ContextFlags::LOADING);
        V::decode(bytes.as_ref(), is_restore).map_or(null_mut(), give)
    }

    pub extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
        let mut bytes = Vec::new();
        snapshot::save(lock(value), &mut bytes);
        raw::save_slice(io, &bytes);
    }

    pub extern "C" fn aof_rewrite(
        io: *mut raw::RedisModuleIO,
        key: *mut raw::RedisModuleString,
        value: *mut c_void,
    ) {
        let mut bytes = Vec::new();
        let changes = snapshot::as_changes(lock(value));
        snapshot::save_effect(snapshot::Start::Rewritten, &changes, &mut bytes);
        // SAFETY: handle and key are the server's own; the format says a string, then bytes with
        // their length.
        unsafe {
            let emit = there(raw::RedisModule_EmitAOF);
            emit(io, c"RLOCK.APPLY".as_ptr(), c"sb".as_ptr(), key, bytes.as_ptr(), bytes.len());
        }
    }

    pub extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
        let mut bytes = Vec::new();
        snapshot::save(lock(value), &mut bytes);
        // SAFETY: the server's own digest; bytes.
        unsafe {
            let add = there(raw::RedisModule_DigestAddStringBuffer);
            add(digest, bytes.as_ptr().cast(), bytes.len());
            there(raw::RedisModule_DigestEndSequence)(digest);
        }
    }

    pub extern "C" fn mem_usage(
        _: *mut raw::RedisModuleKeyOptCtx,
        value: *const c_void,
        _samples: usize,
    ) -> usize {
        lock(value).heap_bytes().saturating_add(size_of::<Lock>())
    }

    pub extern "C" fn free_effort(
        _: *mut raw::RedisModuleKeyOptCtx,
        value: *const c_void,
    ) -> usize {
        lock(value).hold_count().max(1)
    }

    pub extern "C" fn unlink<V: Values>(key: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
        // SAFETY: the server's own handle of this callback.
        let (db, name) = unsafe {
            let db = there(raw::RedisModule_GetDbIdFromOptCtx)(key);
            (db, there(raw::RedisModule_GetKeyNameFromOptCtx)(key))
        };
        if !name.is_null() {
            V::unlinked(db, bytes_of(name), lock(value));
        }
    }

    pub extern "C" fn free(value: *mut c_void) {
        take(value);
    }

    fn lock<'a>(value: *const c_void) -> &'a Lock {
        // SAFETY: a value of our type is what `give` gave; the server calls back only while it is
        // alive, and nothing of ours holds it mutably across a call into the server.
        unsafe { &*value.cast::<Lock>() }
    }
}

/// The version of [`value::rdb_save`]'s format that the server notes beside each value. What
/// changes with a release is the first byte of the value itself.
const ENCODING: c_int = 0;

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
        ctx.warn("rlock needs Redis 7.0 or later, or Valkey");
        return ERR;
    }
    let mut valkeys: *mut c_void = null_mut();
    // SAFETY: the server looks the name up and writes a function's address, or nothing, to the
    // place given.
    let found = unsafe {
        let place = (&raw mut valkeys).cast();
        there(raw::RedisModule_GetApi)(c"ValkeyModule_Call".as_ptr(), place)
    };
    IS_VALKEY.store(found == OK, Relaxed);
    IS_CLUSTER.store(ctx.flags().contains(ContextFlags::CLUSTER), Relaxed);
    // SAFETY: the server gives `argc` strings that live as long as this call.
    let arguments = unsafe { slice(argv, argc) };
    let arguments: Vec<&[u8]> = arguments.iter().map(|string| bytes_of(*string)).collect();
    match crate::load(&ctx, &arguments) {
        Ok(()) => OK,
        Err(why) => {
            ctx.warn(&format!("rlock is not loaded: {why}"));
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

impl Ctx {
    /// Registers the type of a lock's key, named `rlock-key`, and whom to ask about its values.
    pub fn register_type<V: Values>(&self) -> Result<(), String> {
        // SAFETY: a callback that is all zeros is `None`.
        let none: raw::RedisModuleTypeMethods = unsafe { std::mem::zeroed() };
        let mut methods = raw::RedisModuleTypeMethods {
            version: raw::REDISMODULE_TYPE_METHOD_VERSION.into(),
            rdb_load: Some(value::rdb_load::<V>),
            rdb_save: Some(value::rdb_save),
            aof_rewrite: Some(value::aof_rewrite),
            digest: Some(value::digest),
            free: Some(value::free),
            mem_usage2: Some(value::mem_usage),
            free_effort2: Some(value::free_effort),
            unlink2: Some(value::unlink::<V>),
            ..none
        };
        // SAFETY: context, at load; the server copies the methods. The detached context is never
        // freed.
        let (kind, detached) = unsafe {
            let create = there(raw::RedisModule_CreateDataType);
            let kind = create(self.0, c"rlock-key".as_ptr(), ENCODING, &raw mut methods);
            (kind, there(raw::RedisModule_GetDetachedThreadSafeContext)(self.0))
        };
        TYPE.store(kind, Relaxed);
        DETACHED.store(detached, Relaxed);
        if kind.is_null() { Err("the server refuses the type rlock-key".into()) } else { Ok(()) }
    }

    /// Subscribes to the keys that the server expires and evicts.
    pub fn watch_losses<V: Values>(&self) {
        extern "C" fn on_event<V: Values>(
            ctx: *mut raw::RedisModuleCtx,
            kind: c_int,
            _: *const c_char,
            key: *mut raw::RedisModuleString,
        ) -> c_int {
            let is_evicted = kind & raw::REDISMODULE_NOTIFY_EVICTED != 0;
            V::lost(Ctx(ctx).selected_db(), bytes_of(key), is_evicted);
            OK
        }
        let kinds = raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;
        // SAFETY: context, at load.
        unsafe {
            there(raw::RedisModule_SubscribeToKeyspaceEvents)(self.0, kinds, Some(on_event::<V>));
        }
    }

    /// Reads the module's settings from the server's configuration, after all were registered.
    pub fn load_settings(&self) -> Result<(), String> {
        // SAFETY: context, at load.
        match unsafe { there(raw::RedisModule_LoadConfigs)(self.0) } {
            0 => Ok(()),
            _ => Err("a setting is out of its range".into()),
        }
    }

    /// Registers a command, described by `info`.
    pub fn register_command<H: Handler>(
        &self,
        command: &Command,
        info: &Info,
    ) -> Result<(), String> {
        extern "C" fn entry<H: Handler>(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            // SAFETY: the server gives `argc` strings that live as long as this call.
            H::run(&Ctx(ctx), &Arguments(unsafe { slice(argv, argc) }));
            OK
        }
        // In lower case, as the server's own commands stand in its statistics.
        let name = c_string(&command.name.to_ascii_lowercase());
        let flags = c_string(command.flags);
        let at = c_int::from(command.access != Access::Keyless);
        // SAFETY: context, at load; the server copies the strings and the description.
        let described = unsafe {
            let create = there(raw::RedisModule_CreateCommand);
            create(self.0, name.as_ptr(), Some(entry::<H>), flags.as_ptr(), at, at, at);
            let registered = there(raw::RedisModule_GetCommand)(self.0, name.as_ptr());
            !registered.is_null()
                && there(raw::RedisModule_SetCommandInfo)(registered, info.as_ptr()) == 0
        };
        if !described {
            return Err(format!("the server refuses {}", command.name));
        }
        // Since Redis 7.2 and 7.4; where they are missing, ACL rules name the commands instead.
        if self.add_category(c"rlock").is_ok() {
            let _ = self.set_categories(&name, &c_string(&format!("{} rlock", command.acl)));
        } else {
            let _ = self.set_categories(&name, &c_string(command.acl));
        }
        Ok(())
    }

    api!(
        [RedisModule_AddACLCategory],
        fn add_category(&self, name: &CStr) {
            // SAFETY: context, at load; the server copies the name. The category may be there
            // already.
            unsafe { RedisModule_AddACLCategory(self.0, name.as_ptr()) };
        }
    );

    api!(
        [RedisModule_SetCommandACLCategories],
        fn set_categories(&self, command: &CStr, categories: &CStr) {
            // SAFETY: context, at load; the command was registered just now.
            unsafe {
                let command = there(raw::RedisModule_GetCommand)(self.0, command.as_ptr());
                RedisModule_SetCommandACLCategories(command, categories.as_ptr());
            }
        }
    );
}
