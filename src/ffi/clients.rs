//! Connections: which ones close, and how to close one; and databases that are emptied or swapped.
//!
//! The server may be removing keys when `CLIENT` is called here. When that call ends, Redis 7.0
//! propagates the removals so far, and drops them if the call may not replicate. So these calls
//! may, although there is nothing in them to replicate.

use redis_module::{CallOptionsBuilder, CallResult};

use super::*;

/// What happens to whole databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseChange {
    /// This database is emptied; `None` means all of them.
    Flushed(Option<c_int>),
    /// These two are swapped.
    Swapped(c_int, c_int),
}

/// Whether this is the ID of a connection, and not that of a script's or another module's client.
pub fn is_connection(client: u64) -> bool {
    // SAFETY: without a buffer for the answer, the server only reports whether it knows the ID.
    unsafe { there(raw::RedisModule_GetClientInfoById)(null_mut(), client) == OK }
}

impl Ctx {
    /// Whether a connection can be closed without harm: only `CLIENT KILL` closes it at once and
    /// waits for I/O threads that use it, but an administrator can take `CLIENT` away.
    pub fn can_close(&self) -> bool {
        /// Only a restart of the server can take the command away.
        static IS_THERE: AtomicBool = AtomicBool::new(false);
        if IS_THERE.load(Relaxed) {
            return true;
        }
        let is_there = self.describe_client(1).is_some();
        IS_THERE.store(is_there, Relaxed);
        is_there
    }

    /// Whether this connection is blocked.
    pub fn is_blocked(&self, client: u64) -> bool {
        let version = raw::REDISMODULE_CLIENTINFO_VERSION.into();
        let (flags, id, addr, port, db) = (0, 0, [0; 46], 0, 0);
        let mut info = raw::RedisModuleClientInfo { version, flags, id, addr, port, db };
        // SAFETY: the structure has the version that it names, and the server fills it.
        let known = unsafe {
            let place = (&raw mut info).cast();
            there(raw::RedisModule_GetClientInfoById)(place, client)
        };
        let blocked = u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_BLOCKED);
        known == OK && info.flags & blocked != 0
    }

    /// Closes a connection at once. Never call it for the connection whose command is running: the
    /// server would continue to use freed memory.
    pub fn kill(&self, client: u64) {
        let id = c_string(&client.to_string());
        let words = c"!ccc".as_ptr();
        // SAFETY: context; the format allows replication, and names three strings. The server
        // refuses an unknown connection with an error, which we free.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let (kill, by) = (c"KILL".as_ptr(), c"ID".as_ptr());
            let reply = call(self.0, c"CLIENT".as_ptr(), words, kill, by, id.as_ptr());
            if !reply.is_null() {
                there(raw::RedisModule_FreeCallReply)(reply);
            }
        }
    }

    /// Closes a connection. If its command is running, it is closed after the reply, and acts as
    /// the default user until then. Only for Redis 7.0: on servers whose I/O threads run in
    /// parallel to the main thread, this breaks a connection that an I/O thread is using.
    pub fn close(&self, client: u64) {
        // SAFETY: context; the server refuses an unknown connection.
        unsafe { there(raw::RedisModule_DeauthenticateAndCloseClient)(self.0, client) };
    }

    /// The line of `CLIENT LIST` about a connection.
    pub fn describe_client(&self, client: u64) -> Option<String> {
        self.list_clients(&["LIST", "ID", &client.to_string()])
    }

    /// The lines of `CLIENT LIST` about all connections.
    pub fn describe_clients(&self) -> Option<String> {
        self.list_clients(&["LIST"])
    }

    // Users' names need not be UTF-8.
    fn list_clients(&self, words: &[&str]) -> Option<String> {
        let options = CallOptionsBuilder::new().replicate().build();
        let reply: CallResult<'_> = self.wrapped().call_ext("CLIENT", &options, words);
        match RedisValue::from(&reply.ok()?) {
            RedisValue::StringBuffer(lines) => Some(String::from_utf8_lossy(&lines).into_owned()),
            lines => text_of(lines),
        }
    }

    /// Subscribes to the connections that close.
    pub fn watch_connections(&self, ended: fn(u64)) {
        static ENDED: std::sync::OnceLock<fn(u64)> = std::sync::OnceLock::new();
        extern "C" fn on_change(
            _: *mut raw::RedisModuleCtx,
            _: raw::RedisModuleEvent,
            what: u64,
            data: *mut c_void,
        ) {
            // SAFETY: with this event the server passes its description of the connection, alive
            // for the call.
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

    /// Subscribes to whole databases being emptied or swapped.
    pub fn watch_databases(&self, upheaval: fn(DatabaseChange)) {
        static UPHEAVAL: std::sync::OnceLock<fn(DatabaseChange)> = std::sync::OnceLock::new();
        extern "C" fn on_flush(
            _: *mut raw::RedisModuleCtx,
            _: raw::RedisModuleEvent,
            stage: u64,
            data: *mut c_void,
        ) {
            // SAFETY: with this event the server passes what it flushes, alive for the call.
            let info = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
            if stage == raw::REDISMODULE_SUBEVENT_FLUSHDB_START
                && let (Some(info), Some(upheaval)) = (info, UPHEAVAL.get())
            {
                upheaval(DatabaseChange::Flushed((info.dbnum >= 0).then_some(info.dbnum)));
            }
        }
        extern "C" fn on_swap(
            _: *mut raw::RedisModuleCtx,
            _: raw::RedisModuleEvent,
            _: u64,
            data: *mut c_void,
        ) {
            // SAFETY: with this event the server passes what it swaps, alive for the call.
            let info = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() };
            if let (Some(info), Some(upheaval)) = (info, UPHEAVAL.get()) {
                upheaval(DatabaseChange::Swapped(info.dbnum_first, info.dbnum_second));
            }
        }
        UPHEAVAL.get_or_init(|| upheaval);
        let flush = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_FLUSHDB, dataver: 1 };
        let swap = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_SWAPDB, dataver: 1 };
        raw::subscribe_to_server_event(self.0, flush, Some(on_flush));
        raw::subscribe_to_server_event(self.0, swap, Some(on_swap));
    }
}
