//! Shard channels: their subscribers, the permission to publish, and publishing.

use rlock_engine::{Channels, protocol};

use super::*;

impl Channels for Ctx {
    fn knows_listeners(&self) -> bool {
        /// Only a restart of the server can take the command away.
        static IS_THERE: AtomicBool = AtomicBool::new(false);
        if !IS_THERE.load(Relaxed) {
            IS_THERE.store(self.listeners(b"").is_some(), Relaxed);
        }
        IS_THERE.load(Relaxed)
    }

    fn has_listener(&self, channel: &[u8]) -> bool {
        self.listeners(channel).is_some_and(|count| count > 0)
    }

    fn have_listeners(&self, channels: &[&[u8]]) -> Vec<bool> {
        // SAFETY: context; bytes; the format names a string, then a vector of strings of ours with
        // its length, as given, which we free after the last use. Only we have the reply.
        let counted = unsafe {
            let create = there(raw::RedisModule_CreateString);
            let string = |bytes: &&[u8]| create(self.0, bytes.as_ptr().cast(), bytes.len());
            let names: Vec<*mut raw::RedisModuleString> = channels.iter().map(string).collect();
            let call = there(raw::RedisModule_Call);
            let (command, of) = (c"PUBSUB".as_ptr(), c"SHARDNUMSUB".as_ptr());
            let reply = call(self.0, command, c"cv".as_ptr(), of, names.as_ptr(), names.len());
            let counted = read_reply(reply, |reply| {
                Some(protocol::subscribers(reply)?.map(|count| count > 0).collect::<Vec<bool>>())
            });
            names.iter().for_each(|name| there(raw::RedisModule_FreeString)(self.0, *name));
            counted
        };
        let mut all = counted.unwrap_or_default();
        all.resize(channels.len(), false);
        all
    }

    fn publish_message(&self, channel: &[u8], message: &[u8]) -> bool {
        // SAFETY: context; bytes. The strings are ours and freed here, after the last use.
        unsafe {
            let create = there(raw::RedisModule_CreateString);
            let channel = create(self.0, channel.as_ptr().cast(), channel.len());
            let message = create(self.0, message.as_ptr().cast(), message.len());
            let heard = there(raw::RedisModule_PublishMessageShard)(self.0, channel, message);
            there(raw::RedisModule_FreeString)(self.0, channel);
            there(raw::RedisModule_FreeString)(self.0, message);
            heard > 0
        }
    }

    /// A deleted user may not.
    fn may_publish(&self, user: Option<&[u8]>, channel: &[u8]) -> bool {
        let Some(user) = user else { return true };
        let Some(known) = Self::user_called(user) else { return false };
        // SAFETY: context; bytes. The string and the user are ours and freed here, after the last
        // use.
        unsafe {
            let create = there(raw::RedisModule_CreateString);
            let free = there(raw::RedisModule_FreeString);
            let channel = create(self.0, channel.as_ptr().cast(), channel.len());
            let check = there(raw::RedisModule_ACLCheckChannelPermissions);
            let answer = check(known, channel, raw::REDISMODULE_CMD_CHANNEL_PUBLISH.cast_signed());
            free(self.0, channel);
            there(raw::RedisModule_FreeModuleUser)(known);
            answer == OK
        }
    }
}

impl Ctx {
    /// How many subscribers a shard channel has on this server.
    fn listeners(&self, channel: &[u8]) -> Option<u64> {
        // SAFETY: context; the format names a string, then bytes with their length, as given.
        // Nobody else has the reply.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let (command, of) = (c"PUBSUB".as_ptr(), c"SHARDNUMSUB".as_ptr());
            let (start, len) = (channel.as_ptr(), channel.len());
            let reply = call(self.0, command, c"cb".as_ptr(), of, start, len);
            read_reply(reply, |reply| protocol::subscribers(reply)?.next())
        }
    }
}
