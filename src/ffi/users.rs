//! The server's users and their rights.

use std::ffi::CStr;

use super::*;

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

    /// Whether a user may send this command for this key now. A deleted user may send none.
    pub fn may(&self, user: &str, command: &CStr, name: &Name<'_>, owner: &[u8]) -> bool {
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
            let check = there(raw::RedisModule_ACLCheckCommandPermissions);
            let answer = check(known, words.as_mut_ptr(), 3);
            free(self.0, owner);
            free(self.0, command);
            there(raw::RedisModule_FreeModuleUser)(known);
            answer == OK
        }
    }
}
