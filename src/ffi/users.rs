//! The server's users and their permissions.

use std::ffi::CStr;
use std::mem::transmute;
use std::sync::OnceLock;

use rlock_engine::Keys;
use smallvec::SmallVec;

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

/// Valkey's own check, since 9.1, where a user can be limited to databases. There, the older check
/// knows of no database, and refuses every user with such a limit.
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

/// A string of the server that lives as long as this value.
struct Lasting {
    bytes: Vec<u8>,
    string: *mut raw::RedisModuleString,
}

impl Lasting {
    fn new(bytes: &[u8]) -> Self {
        // SAFETY: bytes; a string without a context lasts until it is freed.
        let string = unsafe {
            let create = there(raw::RedisModule_CreateString);
            create(null_mut(), bytes.as_ptr().cast(), bytes.len())
        };
        Self { bytes: bytes.to_vec(), string }
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        // SAFETY: the string is ours, and only we have it.
        unsafe { there(raw::RedisModule_FreeString)(null_mut(), self.string) };
    }
}

/// Strings that are needed again and again, the most recent ones first.
type Strings = Exclusive<Vec<Lasting>>;

/// How many of them are kept.
const KEPT: usize = 4;

/// Numbers in commands.
static NUMBERS: Strings = Exclusive::empty();
/// The names of commands.
static COMMANDS: Strings = Exclusive::empty();
/// The names of users.
static USERS: Strings = Exclusive::empty();

/// The server's string with these bytes. It remains valid until `KEPT` other strings were requested
/// from `of`.
fn lasting(bytes: &[u8], of: &Strings) -> *mut raw::RedisModuleString {
    of.with(|all| {
        let known = all.iter().position(|known| known.bytes == bytes);
        let at = known.unwrap_or_else(|| {
            all.truncate(KEPT.saturating_sub(1));
            all.push(Lasting::new(bytes));
            all.len().saturating_sub(1)
        });
        if let Some(up_to_it) = all.get_mut(..=at) {
            up_to_it.rotate_right(1);
        }
        all.first().map_or(null_mut(), |recent| recent.string)
    })
}

impl Ctx {
    /// The server's user of this name, to be freed; `None` if it is deleted.
    pub(super) fn user_called(name: &[u8]) -> Option<*mut raw::RedisModuleUser> {
        // SAFETY: the string lasts, and the server only reads it.
        let known =
            unsafe { there(raw::RedisModule_GetModuleUserFromUserName)(lasting(name, &USERS)) };
        (!known.is_null()).then_some(known)
    }

    /// Whether a user may send this command for these keys of the selected database now; `count` is
    /// their number, if the command names it. A deleted user may send none.
    pub fn may(
        &self,
        user: &[u8],
        command: &'static CStr,
        count: Option<usize>,
        names: &[Name<'_>],
    ) -> bool {
        /// A user's rules concern a command's name and its keys, and no other arguments.
        const ANY: &[u8] = b"0";
        let Some(known) = Self::user_called(user) else { return false };
        let mut words: SmallVec<[*mut raw::RedisModuleString; 4]> =
            SmallVec::from_iter([lasting(command.to_bytes(), &COMMANDS)]);
        words.extend(count.map(|count| lasting(count.to_string().as_bytes(), &NUMBERS)));
        words.extend(names.iter().map(|name| name.string));
        words.push(lasting(ANY, &NUMBERS));
        let count = c_int::try_from(words.len()).unwrap_or(0);
        // SAFETY: the strings last, and the server only reads them. The user is ours and freed
        // here, after the last use.
        unsafe {
            let answer = match may_in_database() {
                Some(check) => check(known, words.as_mut_ptr(), count, self.db(), null_mut()),
                None => {
                    let check = there(raw::RedisModule_ACLCheckCommandPermissions);
                    check(known, words.as_mut_ptr(), count)
                }
            };
            there(raw::RedisModule_FreeModuleUser)(known);
            answer == OK
        }
    }
}
