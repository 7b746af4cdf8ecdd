//! The server's users and their rights.

use std::ffi::CStr;
use std::mem::transmute;
use std::sync::OnceLock;

use super::*;

/// `ValkeyModule_ACLCheckPermissions`: a user, a command with its arguments, a database, and a
/// place for the reason of a refusal, or null.
type MayInDatabase = unsafe extern "C" fn(
    *mut raw::RedisModuleUser,
    *mut *mut raw::RedisModuleString,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

/// Valkey's own check, since 9.1, where a user can be limited to databases. There the older check
/// knows no database, and refuses every user with such a limit.
fn may_in_database() -> Option<MayInDatabase> {
    static FOUND: OnceLock<Option<MayInDatabase>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let mut found: *mut c_void = null_mut();
        // SAFETY: the server looks the name up and writes a function's address, or nothing, to the
        // given place. A function of that name has that type; a null pointer becomes `None`.
        unsafe {
            let place = (&raw mut found).cast();
            there(raw::RedisModule_GetApi)(c"ValkeyModule_ACLCheckPermissions".as_ptr(), place);
            transmute::<*mut c_void, Option<MayInDatabase>>(found)
        }
    })
}

impl Ctx {
    /// The user as which the caller is logged in.
    pub fn user_name(&self) -> String {
        // SAFETY: context; we free the string, after copying its bytes.
        unsafe {
            let name = there(raw::RedisModule_GetCurrentUserName)(self.0);
            if name.is_null() {
                return String::new();
            }
            let copy = String::from_utf8_lossy(bytes_of(name)).into_owned();
            there(raw::RedisModule_FreeString)(self.0, name);
            copy
        }
    }

    /// Whether a user may send this command for this key of this database now. A deleted user may
    /// send none.
    pub fn may(
        &self,
        user: &str,
        command: &CStr,
        db: c_int,
        name: &Name<'_>,
        owner: &[u8],
    ) -> bool {
        // SAFETY: context; bytes. All strings and the user are ours and freed here, after the last
        // use, except the key's name, which is the server's.
        unsafe {
            let create = there(raw::RedisModule_CreateString);
            let free = there(raw::RedisModule_FreeString);
            let user = create(self.0, user.as_ptr().cast(), user.len());
            let known = there(raw::RedisModule_GetModuleUserFromUserName)(user);
            free(self.0, user);
            if known.is_null() {
                return false;
            }
            let command = create(self.0, command.as_ptr(), command.count_bytes());
            let owner = create(self.0, owner.as_ptr().cast(), owner.len());
            let mut words = [command, name.string, owner];
            let answer = match may_in_database() {
                Some(check) => check(known, words.as_mut_ptr(), 3, db, null_mut()),
                None => {
                    let check = there(raw::RedisModule_ACLCheckCommandPermissions);
                    check(known, words.as_mut_ptr(), 3)
                }
            };
            free(self.0, owner);
            free(self.0, command);
            there(raw::RedisModule_FreeModuleUser)(known);
            answer == OK
        }
    }
}
