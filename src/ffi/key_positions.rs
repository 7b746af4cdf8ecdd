//! Which arguments of a command that names several keys are the keys: the server asks that to route
//! commands in a Cluster and to check permissions.

use rlock_core::grammar::key_count;

use super::*;

impl Ctx {
    /// If the server only asks where the keys of this command are, reports them and returns true.
    /// It reports none if their number is wrong, or greater than that of the arguments: the command
    /// is then an error.
    pub fn tells_keys(&self, words: &Argv<'_>) -> bool {
        // SAFETY: context.
        if unsafe { there(raw::RedisModule_IsKeysPositionRequest)(self.0) } == 0 {
            return false;
        }
        let flags = raw::REDISMODULE_CMD_KEY_RW
            | raw::REDISMODULE_CMD_KEY_ACCESS
            | raw::REDISMODULE_CMD_KEY_UPDATE;
        let count = words.words().next().and_then(key_count).unwrap_or(0);
        if words.words().count() > count {
            for place in (2..).take(count) {
                // SAFETY: context of a request for the positions of keys.
                unsafe {
                    there(raw::RedisModule_KeyAtPosWithFlags)(self.0, place, flags.cast_signed());
                }
            }
        }
        true
    }
}
