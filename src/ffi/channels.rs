//! Shard channels: who listens, who may publish, and publishing.

use std::io::Error;

use super::*;

impl Ctx {
    /// Whether a shard channel has a subscriber on this server. `None` if an administrator took the
    /// command away that says so.
    pub fn has_listener(&self, channel: &[u8]) -> Option<bool> {
        // SAFETY: context; the format names a string, then bytes with their length, as given. We
        // free the reply, after reading it; a missing element is null, which has no length and no
        // number.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let (command, of) = (c"PUBSUB".as_ptr(), c"SHARDNUMSUB".as_ptr());
            let (start, len) = (channel.as_ptr(), channel.len());
            let reply = call(self.0, command, c"cb".as_ptr(), of, start, len);
            if reply.is_null() {
                return None;
            }
            let element = there(raw::RedisModule_CallReplyArrayElement);
            let kind = there(raw::RedisModule_CallReplyType)(reply);
            let is_list = isize::try_from(kind) == Ok(raw::REDISMODULE_REPLY_ARRAY);
            let count = if is_list { element(reply, 1) } else { null_mut() };
            let number = match count.is_null() {
                true => None,
                false => Some(there(raw::RedisModule_CallReplyInteger)(count)),
            };
            there(raw::RedisModule_FreeCallReply)(reply);
            number.map(|number| number > 0)
        }
    }

    /// Publishes a message to the subscribers of a shard channel.
    pub fn publish(&self, channel: &[u8], message: &[u8]) {
        // SAFETY: context; bytes. The strings are ours and freed here, after the last use.
        unsafe {
            let create = there(raw::RedisModule_CreateString);
            let channel = create(self.0, channel.as_ptr().cast(), channel.len());
            let message = create(self.0, message.as_ptr().cast(), message.len());
            there(raw::RedisModule_PublishMessageShard)(self.0, channel, message);
            there(raw::RedisModule_FreeString)(self.0, channel);
            there(raw::RedisModule_FreeString)(self.0, message);
        }
    }

    /// Whether a user may publish to this channel now. A deleted user may not.
    pub fn may_publish(&self, user: &[u8], channel: &[u8]) -> bool {
        // SAFETY: context; bytes. The strings and the user are ours and freed here, after the last
        // use.
        unsafe {
            let create = there(raw::RedisModule_CreateString);
            let free = there(raw::RedisModule_FreeString);
            let name = create(self.0, user.as_ptr().cast(), user.len());
            let known = there(raw::RedisModule_GetModuleUserFromUserName)(name);
            free(self.0, name);
            if known.is_null() {
                return false;
            }
            let channel = create(self.0, channel.as_ptr().cast(), channel.len());
            let check = there(raw::RedisModule_ACLCheckChannelPermissions);
            let answer = check(known, channel, raw::REDISMODULE_CMD_CHANNEL_PUBLISH.cast_signed());
            free(self.0, channel);
            there(raw::RedisModule_FreeModuleUser)(known);
            answer == OK
        }
    }

    /// The user as which any caller is logged in; empty for another module, which has none.
    pub fn any_user_name(&self) -> std::rc::Rc<[u8]> {
        let has_user = self.connection().is_some()
            || self.flags().contains(ContextFlags::LUA) && self.has_user();
        if has_user { self.user_name() } else { std::rc::Rc::default() }
    }

    /// Whether the context has a user. The server says so when it is asked to run a command as that
    /// user, whether it may or not.
    fn has_user(&self) -> bool {
        // SAFETY: context; the format names no arguments, and that the user's rights count. We free
        // the reply, after reading `errno`, which holds the reason of a missing one.
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

    /// Whether this runs in a transaction, or inside something longer.
    pub fn is_in_longer(&self) -> bool {
        self.is_nested() || self.flags().contains(ContextFlags::MULTI)
    }
}
