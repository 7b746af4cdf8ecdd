//! The running command, and who sent it.

use std::io::Error;
use std::rc::Rc;

use rlock_core::ClientId;
use rlock_engine::Caller;

use super::*;

impl Caller for Ctx {
    fn client(&self) -> Option<ClientId> {
        let flags = self.flags();
        let is_called =
            flags.contains(ContextFlags::DENY_BLOCKING) && !flags.contains(ContextFlags::MULTI);
        if is_called || flags.contains(ContextFlags::LUA) {
            return None;
        }
        let id = self.connection()?;
        // If another module calls the command as its caller's user, Valkey 9 names an internal
        // client, which `CLIENT LIST` does not show.
        let is_listed = || self.describe_client(id).is_some_and(|line| !line.trim().is_empty());
        let is_sure = !IS_VALKEY_9.load(Relaxed) || !flags.contains(ContextFlags::MULTI);
        (is_sure || is_listed()).then_some(ClientId::from(id))
    }

    /// Redis up to 7.4 and Valkey 7.2 crash if the caller is another module.
    fn user(&self) -> Rc<[u8]> {
        /// The name of the last caller's user: most connections have the same user.
        static LAST: Exclusive<Rc<[u8]>> = Exclusive::empty();
        // SAFETY: context of a caller with a user; we free the string, after copying its bytes.
        unsafe {
            let name = there(raw::RedisModule_GetCurrentUserName)(self.0);
            if name.is_null() {
                return Rc::default();
            }
            let user = LAST.with(|last| {
                let bytes = bytes_of(name);
                if **last != *bytes {
                    *last = bytes.into();
                }
                last.clone()
            });
            there(raw::RedisModule_FreeString)(self.0, name);
            user
        }
    }

    fn any_user(&self) -> Rc<[u8]> {
        let has_user = self.connection().is_some()
            || self.flags().contains(ContextFlags::LUA) && self.has_user();
        if has_user { self.user() } else { Rc::default() }
    }

    fn denies_blocking(&self) -> bool {
        let denied = ContextFlags::DENY_BLOCKING
            | ContextFlags::REPLICATED
            | ContextFlags::LOADING
            | ContextFlags::MULTI
            | ContextFlags::LUA;
        // Another module may allow its call to block, but such a caller has no user.
        self.flags().intersects(denied) || self.connection().is_none()
    }

    fn is_from_primary(&self) -> bool {
        self.flags().intersects(ContextFlags::REPLICATED | ContextFlags::LOADING)
    }

    fn is_loading(&self) -> bool {
        self.flags().contains(ContextFlags::LOADING)
    }

    fn is_in_longer(&self) -> bool {
        self.is_nested() || self.flags().contains(ContextFlags::MULTI)
    }

    fn must_answer_later(&self) -> bool {
        TELLS_AT_ONCE.load(Relaxed) && self.is_nested()
    }
}

impl Ctx {
    /// The ID of the context's client if it is a connection, and not another module's call.
    fn connection(&self) -> Option<u64> {
        // SAFETY: context; we free the string.
        unsafe {
            let id = there(raw::RedisModule_GetClientId)(self.0);
            let known = is_connection(id);
            // For such a call, Valkey 9 also knows its internal client, which has no user.
            if !known || !IS_VALKEY_9.load(Relaxed) {
                return known.then_some(id);
            }
            let user = there(raw::RedisModule_GetClientUserNameById)(self.0, id);
            if user.is_null() {
                return None;
            }
            there(raw::RedisModule_FreeString)(self.0, user);
            Some(id)
        }
    }

    /// Whether the context has a user. The server's answer to a command that is to run as that user
    /// shows it, whether or not the user may run it.
    fn has_user(&self) -> bool {
        // SAFETY: context; the format names no arguments, and demands the user's permissions. We
        // free the reply, after reading `errno`, which holds the reason of a missing one.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let reply = call(self.0, c"RLOCK.HELP".as_ptr(), c"C".as_ptr());
            let why = Error::last_os_error().raw_os_error();
            if reply.is_null() {
                return why == Some(libc::EACCES);
            }
            there(raw::RedisModule_FreeCallReply)(reply);
            true
        }
    }

    /// Whether this runs inside something longer: a script, or another module's command.
    fn is_nested(&self) -> bool {
        let flags = self.flags();
        flags.contains(ContextFlags::LUA)
            || flags.contains(ContextFlags::DENY_BLOCKING) && !flags.contains(ContextFlags::MULTI)
    }
}
