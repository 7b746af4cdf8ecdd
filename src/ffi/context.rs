//! What the server can do in the context of a callback.

use std::ffi::CStr;
use std::io::Error;
use std::marker::PhantomData;

use rlock_core::grammar::Access;
use rlock_core::manager::LockId;
use rlock_engine::{Gate, Keys};
use smallvec::SmallVec;

use super::*;

impl Keys for Ctx {
    type Name<'n> = Name<'n>;
    type Key<'h> = Key<'h>;

    fn db(&self) -> c_int {
        // SAFETY: context.
        unsafe { there(raw::RedisModule_GetSelectedDb)(self.0) }
    }

    fn with_name<T>(&self, id: &LockId, work: impl FnOnce(&Name<'_>) -> T) -> T {
        let LockId { db, key } = id;
        // SAFETY: context; bytes. The string is ours and freed here, after the last use.
        unsafe {
            let before = there(raw::RedisModule_GetSelectedDb)(self.0);
            there(raw::RedisModule_SelectDb)(self.0, *db);
            let create = there(raw::RedisModule_CreateString);
            let string = create(self.0, key.as_ptr().cast(), key.len());
            let result = work(&Name { string, bytes: key });
            there(raw::RedisModule_FreeString)(self.0, string);
            there(raw::RedisModule_SelectDb)(self.0, before);
            result
        }
    }

    fn with_names<T>(&self, db: c_int, keys: &[&[u8]], work: impl FnOnce(&[Name<'_>]) -> T) -> T {
        // SAFETY: context; bytes. The strings are ours and freed here, after the last use.
        unsafe {
            let before = there(raw::RedisModule_GetSelectedDb)(self.0);
            there(raw::RedisModule_SelectDb)(self.0, db);
            let create = there(raw::RedisModule_CreateString);
            let name = |bytes: &&'_ [u8]| create(self.0, bytes.as_ptr().cast(), bytes.len());
            let names: Vec<Name<'_>> =
                keys.iter().map(|bytes| Name { string: name(bytes), bytes }).collect();
            let result = work(&names);
            for name in names {
                there(raw::RedisModule_FreeString)(self.0, name.string);
            }
            there(raw::RedisModule_SelectDb)(self.0, before);
            result
        }
    }

    /// For reading only, a missing key stays null.
    fn open(&self, name: &Name<'_>, access: Access) -> Key<'_> {
        let mode = match access {
            Access::Writes => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
            _ => raw::REDISMODULE_READ,
        };
        // SAFETY: context and name are the server's own and alive.
        let key =
            unsafe { there(raw::RedisModule_OpenKey)(self.0, name.string, mode.cast_signed()) };
        Key { key: key.cast(), of: PhantomData }
    }

    fn replicate(&self, names: &[&Name<'_>], effects: &[u8]) {
        let (command, start, len) = (c"RLOCK.APPLY".as_ptr(), effects.as_ptr(), effects.len());
        if let [name] = names {
            // SAFETY: context; the format names a server's string, then bytes with their length,
            // as given.
            unsafe {
                let replicate = there(raw::RedisModule_Replicate);
                replicate(self.0, command, c"sb".as_ptr(), name.string, start, len)
            };
            return;
        }
        let strings: SmallVec<[_; 16]> = names.iter().map(|name| name.string).collect();
        // SAFETY: context; the format names a vector of a server's strings with its length, then
        // bytes with their length, as given.
        unsafe {
            let replicate = there(raw::RedisModule_Replicate);
            let (first, count) = (strings.as_ptr(), strings.len());
            replicate(self.0, command, c"vb".as_ptr(), first, count, start, len)
        };
    }

    fn replicate_as_it_came(&self) {
        raw::replicate_verbatim(self.0);
    }

    fn signal_modified(&self, name: &Name<'_>) {
        // SAFETY: context and name are the server's own and alive.
        unsafe { there(raw::RedisModule_SignalModifiedKey)(self.0, name.string) };
    }

    /// The class is `d`.
    fn notify(&self, event: &CStr, name: &Name<'_>) {
        // SAFETY: context with a client; the server copies both strings.
        unsafe {
            let notify = there(raw::RedisModule_NotifyKeyspaceEvent);
            notify(self.0, raw::REDISMODULE_NOTIFY_MODULE, event.as_ptr(), name.string)
        };
    }

    /// The probe is a write command of the module that changes nothing and that nobody can rename.
    /// In script mode, the server checks it like a client's write: enough replicas, a writable
    /// disk, a slot that it serves.
    fn gate_of(&self, name: &Name<'_>) -> Gate {
        // SAFETY: context; the format names a string of the server, an empty one of ours, and the
        // mode: script mode, with errors as replies (Valkey 9.1 fails without that). We free the
        // reply, after reading `errno`, which holds the reason of an error.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let (command, nothing) = (c"RLOCK.APPLY".as_ptr(), c"".as_ptr());
            let reply = call(self.0, command, c"scSE".as_ptr(), name.string, nothing);
            let why = Error::last_os_error().raw_os_error();
            let kind = there(raw::RedisModule_CallReplyType)(reply);
            there(raw::RedisModule_FreeCallReply)(reply);
            match why {
                _ if isize::try_from(kind) == Ok(raw::REDISMODULE_REPLY_STRING) => Gate::Open,
                Some(libc::EPERM) => Gate::Elsewhere,
                _ => Gate::Shut,
            }
        }
    }

    fn is_paused(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { there(raw::RedisModule_AvoidReplicaTraffic)() != 0 }
    }

    fn is_cluster(&self) -> bool {
        is_cluster()
    }
}

impl Ctx {
    /// Writes `RLOCK.APPLY key payload` to the append-only file, and not to replicas.
    pub fn append(&self, name: &Name<'_>, payload: &[u8]) {
        // SAFETY: context; the format excludes replicas, and names a server's string, then bytes
        // with their length, as given.
        unsafe {
            let replicate = there(raw::RedisModule_Replicate);
            let (start, len) = (payload.as_ptr(), payload.len());
            replicate(self.0, c"RLOCK.APPLY".as_ptr(), c"Rsb".as_ptr(), name.string, start, len)
        };
    }

    /// The server's flags of this context. They cost it some work, so ask only where needed.
    pub fn flags(&self) -> ContextFlags {
        self.wrapped().get_flags()
    }

    /// The module's own context, for work outside commands.
    pub fn detached() -> Self {
        Self(DETACHED.load(Relaxed))
    }

    /// Whether this node of a Cluster serves the slot of a key. The probe is that of `gate_of`, but
    /// only the slot is checked.
    pub(super) fn serves(&self, name: *mut raw::RedisModuleString) -> bool {
        // SAFETY: context; the format names a string of the server, an empty one of ours, and that
        // errors are replies. We free the reply.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let reply = call(self.0, c"RLOCK.APPLY".as_ptr(), c"scE".as_ptr(), name, c"".as_ptr());
            let kind = there(raw::RedisModule_CallReplyType)(reply);
            there(raw::RedisModule_FreeCallReply)(reply);
            isize::try_from(kind) == Ok(raw::REDISMODULE_REPLY_STRING)
        }
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

    /// The context in the form of the `redis-module` crate.
    pub fn wrapped(&self) -> redis_module::Context {
        redis_module::Context::new(self.0)
    }

    /// The server's version, major and minor.
    pub fn server_version(&self) -> (c_int, c_int) {
        // SAFETY: takes nothing; there since Redis 6.0.9.
        let version = unsafe { there(raw::RedisModule_GetServerVersion)() };
        (version >> 16, (version >> 8) & 0xff)
    }

    /// A field of a section of `INFO`.
    pub fn server_info(&self, section: &CStr, field: &CStr) -> Option<String> {
        // SAFETY: context; we free the data, after copying the text in it.
        unsafe {
            let data = there(raw::RedisModule_GetServerInfo)(self.0, section.as_ptr());
            let text = there(raw::RedisModule_ServerInfoGetFieldC)(data, field.as_ptr());
            let copy =
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
            there(raw::RedisModule_FreeServerInfo)(self.0, data);
            copy
        }
    }
}
