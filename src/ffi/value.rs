//! The values at keys: their type, and the callbacks that the server calls for them.

use std::mem::size_of;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64};

use libc::c_uint;
use rlock_core::{Lock, snapshot};
use rlock_engine::Keys;

use super::*;

/// The type of a lock's key, set once at load.
pub(super) static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());
/// The number of locks that the server keeps for the module.
static LOCKS: AtomicI64 = AtomicI64::new(0);

/// Whether the key that the server is about to unlink has expired, if `note_expiries` records that.
static IS_EXPIRING: AtomicBool = AtomicBool::new(false);
/// `REDISMODULE_AUX_BEFORE_RDB`
const BEFORE_THE_KEYS: c_int = 1;

/// The number of locks that the server keeps: at keys, or about to be freed.
pub fn lock_count() -> u64 {
    u64::try_from(LOCKS.load(Relaxed)).unwrap_or(0)
}

/// What the server asks the module about values.
pub trait Values: 'static {
    /// A lock read from a snapshot, for this database and key; `None` refuses it. The closure
    /// returns whether a client sent the value itself.
    fn decode(
        bytes: &[u8],
        at: Option<(c_int, &[u8])>,
        is_of_a_client: impl Fn() -> bool,
    ) -> Option<Lock>;
    /// A lock is removed from its key. This may be called at any time, so it may only record the
    /// removal. `is_served` says whether this node of a Cluster serves the key, as far as the
    /// server reports that.
    fn unlinked(db: c_int, key: &[u8], lock: &Lock, is_served: bool);
    /// The server expired or evicted a key, of whatever type. It may only record that.
    fn lost(db: c_int, key: &[u8], is_evicted: bool);
    /// The data to save beside the keys. `None` saves nothing, and the file then does not need the
    /// module.
    fn save_aux() -> Option<Vec<u8>>;
    /// Loads the data that was saved beside the keys. False if it is not valid.
    fn load_aux(bytes: &[u8]) -> bool;
}

/// Passes a lock to the server.
pub(super) fn give(lock: Lock) -> *mut c_void {
    LOCKS.fetch_add(1, Relaxed);
    Box::into_raw(Box::new(lock)).cast()
}

/// Takes a lock back. May run in another thread of the server, for a lock that is no longer
/// reachable: apart from memory of the allocator, a lock refers to nothing of the server.
///
/// # Safety
/// `value` came from [`give`], and is not used again.
pub(super) unsafe fn take(value: *mut c_void) {
    LOCKS.fetch_sub(1, Relaxed);
    drop(unsafe { Box::from_raw(value.cast::<Lock>()) });
}

/// Whether this node may use the key's slot. Only Redis since 8.4 reports that at any time; there,
/// a slot's changes arrive one by one before the slot itself moves.
///
/// # Safety
/// The name is the server's, of a key in this callback.
unsafe fn is_served(name: *const raw::RedisModuleString) -> bool {
    type SlotOf = unsafe extern "C" fn(*const raw::RedisModuleString) -> c_uint;
    type CanAccess = unsafe extern "C" fn(c_int) -> c_int;
    static FOUND: OnceLock<Option<(SlotOf, CanAccess)>> = OnceLock::new();
    if !is_cluster() {
        return true;
    }
    let found = FOUND.get_or_init(|| {
        let (mut slot_of, mut can_access): (Option<SlotOf>, Option<CanAccess>) = (None, None);
        // SAFETY: the server looks the names up and writes the functions' addresses, or nothing.
        unsafe {
            let find = there(raw::RedisModule_GetApi);
            find(c"RedisModule_ClusterKeySlot".as_ptr(), (&raw mut slot_of).cast());
            find(c"RedisModule_ClusterCanAccessKeysInSlot".as_ptr(), (&raw mut can_access).cast());
        }
        slot_of.zip(can_access)
    });
    // SAFETY: the functions are the server's; a slot is less than 16384.
    found.is_none_or(|(slot_of, can_access)| unsafe {
        can_access(c_int::try_from(slot_of(name)).unwrap_or(0)) != 0
    })
}

/// The server's callbacks for keys of the module's type.
mod callbacks {
    use super::*;

    pub extern "C" fn rdb_load<V: Values>(
        io: *mut raw::RedisModuleIO,
        encver: c_int,
    ) -> *mut c_void {
        if encver != ENCODING {
            return null_mut();
        }
        let Ok(bytes) = raw::load_string_buffer(io) else { return null_mut() };
        // SAFETY: the server's own handle of this load; the key's name lives as long.
        let at = unsafe {
            let name = there(raw::RedisModule_GetKeyNameFromIO)(io);
            let db = there(raw::RedisModule_GetDbIdFromIO)(io);
            (!name.is_null()).then(|| (db, bytes_of(name)))
        };
        V::decode(bytes.as_ref(), at, || is_of_a_client(io)).map_or(null_mut(), give)
    }

    /// Whether a client sent this value to a primary that serves the key. A value for a slot that
    /// this node imports is another node's, whatever command brings it.
    fn is_of_a_client(io: *mut raw::RedisModuleIO) -> bool {
        // SAFETY: the server's own handle of this load; its context and the key's name live as
        // long.
        let (flags, name) = unsafe {
            let flags = Ctx(there(raw::RedisModule_GetContextFromIO)(io)).flags();
            (flags, there(raw::RedisModule_GetKeyNameFromIO)(io).cast_mut())
        };
        flags.contains(ContextFlags::MASTER)
            && !flags.contains(ContextFlags::LOADING)
            && (name.is_null() || !is_cluster() || Ctx::detached().serves(name))
    }

    pub extern "C" fn aux_load<V: Values>(
        io: *mut raw::RedisModuleIO,
        encver: c_int,
        _when: c_int,
    ) -> c_int {
        let bytes = if encver == ENCODING { raw::load_string_buffer(io).ok() } else { None };
        match bytes.is_some_and(|bytes| V::load_aux(bytes.as_ref())) {
            true => OK,
            false => ERR,
        }
    }

    pub extern "C" fn aux_save<V: Values>(io: *mut raw::RedisModuleIO, _when: c_int) {
        if let Some(bytes) = V::save_aux() {
            raw::save_slice(io, &bytes);
        }
    }

    pub extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
        let mut bytes = Vec::new();
        // SAFETY: a value of our type.
        snapshot::save(unsafe { lock(value) }, &mut bytes);
        raw::save_slice(io, &bytes);
    }

    pub extern "C" fn aof_rewrite(
        io: *mut raw::RedisModuleIO,
        key: *mut raw::RedisModuleString,
        value: *mut c_void,
    ) {
        let mut bytes = Vec::new();
        // SAFETY: a value of our type.
        let changes = snapshot::as_changes(unsafe { lock(value) });
        snapshot::save_effect(snapshot::Start::Rewritten, &changes, &mut bytes);
        // SAFETY: handle and key are the server's own; the format names a string, then bytes with
        // their length.
        unsafe {
            let emit = there(raw::RedisModule_EmitAOF);
            emit(io, c"RLOCK.APPLY".as_ptr(), c"sb".as_ptr(), key, bytes.as_ptr(), bytes.len());
        }
    }

    pub extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
        let mut bytes = Vec::new();
        // SAFETY: a value of our type; the server's own digest; bytes.
        unsafe {
            snapshot::save(lock(value), &mut bytes);
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
        // SAFETY: a value of our type.
        unsafe { lock(value) }.heap_bytes().saturating_add(size_of::<Lock>())
    }

    pub extern "C" fn free_effort(
        _: *mut raw::RedisModuleKeyOptCtx,
        value: *const c_void,
    ) -> usize {
        // SAFETY: a value of our type.
        unsafe { lock(value) }.hold_count().max(1)
    }

    pub extern "C" fn unlink<V: Values>(
        from: *mut raw::RedisModuleKeyOptCtx,
        value: *const c_void,
    ) {
        // SAFETY: the server's own handle of this callback, and with it the key's name; a value of
        // our type.
        unsafe {
            let db = there(raw::RedisModule_GetDbIdFromOptCtx)(from);
            let name = there(raw::RedisModule_GetKeyNameFromOptCtx)(from);
            if !name.is_null() {
                let key = bytes_of(name);
                V::unlinked(db, key, lock(value), is_served(name));
                if IS_EXPIRING.swap(false, Relaxed) {
                    V::lost(db, key, false);
                }
            }
        }
    }

    pub extern "C" fn free(value: *mut c_void) {
        // SAFETY: a value of our type, which the server returns once.
        unsafe { take(value) };
    }

    /// No mutable borrow of it exists: we keep none across a call into the server.
    ///
    /// # Safety
    /// `value` came from [`give`], and the server keeps it for `'a`.
    unsafe fn lock<'a>(value: *const c_void) -> &'a Lock {
        unsafe { &*value.cast::<Lock>() }
    }
}

/// The version of [`callbacks::rdb_save`]'s format, which the server stores beside each value.
/// Releases change the first byte of the value itself instead.
const ENCODING: c_int = 0;

impl Ctx {
    /// Registers the type of a lock's key, `rlock-key`, with the callbacks for its values.
    pub fn register_type<V: Values>(&self) -> Result<(), String> {
        // SAFETY: a callback that is all zeros is `None`.
        let none: raw::RedisModuleTypeMethods = unsafe { std::mem::zeroed() };
        let mut methods = raw::RedisModuleTypeMethods {
            version: raw::REDISMODULE_TYPE_METHOD_VERSION.into(),
            rdb_load: Some(callbacks::rdb_load::<V>),
            rdb_save: Some(callbacks::rdb_save),
            aof_rewrite: Some(callbacks::aof_rewrite),
            digest: Some(callbacks::digest),
            free: Some(callbacks::free),
            mem_usage2: Some(callbacks::mem_usage),
            free_effort2: Some(callbacks::free_effort),
            unlink2: Some(callbacks::unlink::<V>),
            aux_load: Some(callbacks::aux_load::<V>),
            // Since Redis 7.2; before that, a file needs the module even if nothing is saved.
            aux_save2: Some(callbacks::aux_save::<V>),
            aux_save_triggers: BEFORE_THE_KEYS,
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
            // SAFETY: the server keeps the key's name during this callback.
            V::lost(Ctx(ctx).db(), unsafe { bytes_of(key) }, is_evicted);
            OK
        }
        let kinds = match EVENTS_SELECT.load(Relaxed) {
            // Keys of any database expire within commands, and are evicted between commands.
            true => {
                self.note_expiries();
                raw::REDISMODULE_NOTIFY_EVICTED
            }
            false => raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED,
        };
        // SAFETY: context, at load.
        unsafe {
            there(raw::RedisModule_SubscribeToKeyspaceEvents)(self.0, kinds, Some(on_event::<V>));
        }
    }

    /// Records for each removed key whether it expired. The event comes just before the callback
    /// for the value, and selects no database. This makes every removal of a key slightly slower.
    fn note_expiries(&self) {
        extern "C" fn on_event(
            _: *mut raw::RedisModuleCtx,
            _: raw::RedisModuleEvent,
            why: u64,
            _: *mut c_void,
        ) {
            IS_EXPIRING.store(why == raw::REDISMODULE_SUBEVENT_KEY_EXPIRED, Relaxed);
        }
        let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_KEY, dataver: 1 };
        raw::subscribe_to_server_event(self.0, event, Some(on_event));
    }

    /// Subscribes to new keys, permanently: `came` may only record them. For each event, the server
    /// has to create a context.
    pub fn watch_new_keys(&self, came: fn(c_int, &[u8])) {
        static CAME: OnceLock<fn(c_int, &[u8])> = OnceLock::new();
        extern "C" fn on_event(
            ctx: *mut raw::RedisModuleCtx,
            _: c_int,
            _: *const c_char,
            key: *mut raw::RedisModuleString,
        ) -> c_int {
            if let Some(came) = CAME.get() {
                // SAFETY: the server keeps the key's name during this callback.
                came(Ctx(ctx).db(), unsafe { bytes_of(key) });
            }
            OK
        }
        if CAME.set(came).is_err() {
            return;
        }
        let kinds = match EVENTS_SELECT.load(Relaxed) {
            // Events of these classes concern the client's own database.
            true => {
                raw::REDISMODULE_NOTIFY_STRING
                    | raw::REDISMODULE_NOTIFY_HASH
                    | raw::REDISMODULE_NOTIFY_SET
                    | raw::REDISMODULE_NOTIFY_LIST
                    | raw::REDISMODULE_NOTIFY_ZSET
                    | raw::REDISMODULE_NOTIFY_STREAM
            }
            false => raw::REDISMODULE_NOTIFY_NEW,
        };
        // SAFETY: context of a command or a timer; the function is static.
        unsafe {
            there(raw::RedisModule_SubscribeToKeyspaceEvents)(self.0, kinds, Some(on_event));
        }
    }
}
