//! An open key and the lock in it.

use super::value::{TYPE, give, take};
use super::*;
use rlock_core::Lock;
use rlock_engine::Content;
use std::marker::PhantomData;

/// `REDISMODULE_KEYTYPE_EMPTY`
const NO_KEY: c_int = 0;

/// How many milliseconds later than the engine's time the server must expire the key: the engine
/// names the last millisecond in which the key still exists.
fn later_ms() -> u64 {
    u64::from(EXPIRES_WITHIN_ITS_MS.load(Relaxed))
}

/// An open key; closed when dropped.
pub struct Key<'c> {
    pub(super) key: *mut raw::RedisModuleKey,
    pub(super) of: PhantomData<&'c Ctx>,
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `Ctx::open`, closed only here. A null key is allowed.
        unsafe { there(raw::RedisModule_CloseKey)(self.key) }
    }
}

impl rlock_engine::OpenKey for Key<'_> {
    fn content(&mut self) -> Content<'_> {
        if self.key.is_null() {
            return Content::Missing;
        }
        // SAFETY: the key is open. A value of our type is a `Box<Lock>` that `set` or `rdb_load`
        // passed on; nothing else refers to it while this key is borrowed, because the server runs
        // one command at a time.
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

    fn set(&mut self, lock: Lock) {
        let value = give(lock);
        // SAFETY: the key is open for writing and the value is a `Box<Lock>`, as `TYPE` promises.
        let status = unsafe {
            let set = there(raw::RedisModule_ModuleTypeSetValue);
            set(self.key, TYPE.load(Relaxed), value)
        };
        if status != OK {
            // SAFETY: the server has not taken the value.
            unsafe { take(value) };
        }
    }

    fn delete(&mut self) {
        // SAFETY: the key is open for writing; the server ignores a missing one.
        unsafe { there(raw::RedisModule_DeleteKey)(self.key) };
    }

    fn expires_at(&self) -> Option<u64> {
        // SAFETY: the key is open and holds a value. A negative number means never.
        let at_ms = unsafe { there(raw::RedisModule_GetAbsExpire)(self.key) };
        u64::try_from(at_ms).ok().map(|at_ms| at_ms.saturating_sub(later_ms()))
    }

    fn expire_at(&mut self, at_ms: u64) {
        let at_ms = at_ms.saturating_add(later_ms()).cast_signed();
        // SAFETY: the key is open for writing and holds a value.
        unsafe { there(raw::RedisModule_SetAbsExpire)(self.key, at_ms) };
    }
}
