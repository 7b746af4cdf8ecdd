//! What the server and its clients know of a command (`COMMAND DOCS`, `COMMAND INFO`, completion in
//! `redis-cli`): the core's table of commands in the server's terms.

use std::ffi::CString;
use std::mem::size_of;
use std::ptr::{null, null_mut};

use libc::c_char;
use redis_module::raw;
use rlock_core::grammar::commands::SINCE;
use rlock_core::grammar::{Access, Command, Positional, Word};

/// A command's description, with everything that it points to.
pub struct Info {
    info: raw::RedisModuleCommandInfo,
    /// What `info` points to; boxed and never changed, so that nothing moves.
    _kept: (Box<Version>, Vec<CString>, Vec<Vec<Argument>>, Vec<KeySpec>),
}

type Argument = raw::RedisModuleCommandArg;
type KeySpec = raw::RedisModuleCommandKeySpec;
type Version = raw::RedisModuleCommandInfoVersion;

impl Info {
    /// Describes a command.
    pub fn new(command: &Command) -> Self {
        let mut texts = Vec::new();
        let mut subs = Vec::new();
        let mut arguments: Vec<Argument> =
            command.positional.iter().map(|one| positional(*one, &mut texts)).collect();
        for alternatives in command.alternatives() {
            let one = option(alternatives, &mut texts, &mut subs);
            arguments.push(if command.needs_one { Argument { flags: 0, ..one } } else { one });
        }
        arguments.push(END);
        let [summary, complexity, since] =
            [command.summary, command.complexity, SINCE].map(|text| keep(text, &mut texts));
        let mut key_specs: Vec<KeySpec> = key_spec(command).into_iter().collect();
        key_specs.push(NO_KEY);
        let version = Box::new(Version {
            version: 1,
            sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
            sizeof_keyspec: size_of::<KeySpec>(),
            sizeof_arg: size_of::<Argument>(),
        });
        let info = raw::RedisModuleCommandInfo {
            version: &raw const *version,
            summary,
            complexity,
            since,
            history: null_mut(),
            tips: null(),
            arity: command.arity(),
            key_specs: key_specs.as_mut_ptr(),
            args: arguments.as_mut_ptr(),
        };
        subs.push(arguments);
        Self { info, _kept: (version, texts, subs, key_specs) }
    }

    /// The description for the server, valid while `self` lives.
    pub fn as_ptr(&self) -> *const raw::RedisModuleCommandInfo {
        &raw const self.info
    }
}

const END: Argument = Argument {
    name: null(),
    type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
    key_spec_index: -1,
    token: null(),
    summary: null(),
    since: null(),
    flags: 0,
    deprecated_since: null(),
    subargs: null_mut(),
    display_text: null(),
};

const NO_KEY: KeySpec = KeySpec {
    notes: null(),
    flags: 0,
    begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INVALID,
    bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
        index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 0 },
    },
    find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_OMITTED,
    fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
        range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
            lastkey: 0,
            keystep: 1,
            limit: 0,
        },
    },
};

/// The positions of the keys: the first argument; several keys after their number; or every
/// argument but the last.
fn key_spec(command: &Command) -> Option<KeySpec> {
    let flags = match command.access {
        Access::Keyless => return None,
        Access::Reads => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        Access::Writes => {
            raw::REDISMODULE_CMD_KEY_RW
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    };
    let bs = raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
        index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 },
    };
    if command.has_several_keys() {
        let keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
            keynumidx: 0,
            firstkey: 1,
            keystep: 1,
        };
        return Some(KeySpec {
            flags: flags.into(),
            begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
            bs,
            find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM,
            fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 { keynum },
            ..NO_KEY
        });
    }
    let range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
        lastkey: if command.has_leading_keys() { -2 } else { 0 },
        keystep: 1,
        limit: 0,
    };
    Some(KeySpec {
        flags: flags.into(),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
        bs,
        find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
        fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 { range },
        ..NO_KEY
    })
}

fn positional(one: Positional, texts: &mut Vec<CString>) -> Argument {
    let (type_, key_spec_index) = match one {
        Positional::Key | Positional::Keys | Positional::LeadingKeys => {
            (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, 0)
        }
        Positional::Token | Positional::TokenOrZero | Positional::NumKeys => {
            (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, -1)
        }
        _ => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING, -1),
    };
    let is_repeated = matches!(one, Positional::Keys | Positional::LeadingKeys);
    let flags = if is_repeated { raw::REDISMODULE_CMD_ARG_MULTIPLE.cast_signed() } else { 0 };
    Argument { name: keep(one.name(), texts), type_, key_spec_index, flags, ..END }
}

fn option(words: &[Word], texts: &mut Vec<CString>, subs: &mut Vec<Vec<Argument>>) -> Argument {
    let mut each: Vec<Argument> = words.iter().map(|one| word(*one, texts, subs)).collect();
    let flags = raw::REDISMODULE_CMD_ARG_OPTIONAL.cast_signed();
    if let [only] = each.as_slice() {
        return Argument { flags, ..*only };
    }
    each.push(END);
    let name = words.iter().map(|one| one.word().to_lowercase()).collect::<Vec<_>>().join("-or-");
    let one_of = Argument {
        name: keep(&name, texts),
        type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        flags,
        subargs: each.as_mut_ptr(),
        ..END
    };
    subs.push(each);
    one_of
}

fn word(word: Word, texts: &mut Vec<CString>, subs: &mut Vec<Vec<Argument>>) -> Argument {
    let token = keep(word.word(), texts);
    let name = keep(&word.word().to_lowercase(), texts);
    let alone = Argument {
        name,
        type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        token,
        ..END
    };
    match word.value() {
        None => alone,
        Some(value) if word.is_value_repeated() => Argument {
            name: keep(value, texts),
            type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            token,
            flags: raw::REDISMODULE_CMD_ARG_MULTIPLE.cast_signed(),
            ..END
        },
        Some(value) if word.value_count() > 1 => {
            let mut parts: Vec<Argument> =
                value.split(' ').map(|part| Argument { name: keep(part, texts), ..END }).collect();
            parts.push(END);
            let block = Argument {
                name,
                type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
                token,
                subargs: parts.as_mut_ptr(),
                ..END
            };
            subs.push(parts);
            block
        }
        Some(value) if word.is_value_optional() => {
            let value = Argument {
                name: keep(value, texts),
                type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                flags: raw::REDISMODULE_CMD_ARG_OPTIONAL.cast_signed(),
                ..END
            };
            let mut both = vec![alone, value, END];
            let block = Argument {
                name: alone.name,
                type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
                subargs: both.as_mut_ptr(),
                ..END
            };
            subs.push(both);
            block
        }
        Some(value) => Argument {
            name: keep(value, texts),
            type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            token,
            ..END
        },
    }
}

/// A C string's bytes stay where they are when the `CString` moves.
fn keep(text: &str, texts: &mut Vec<CString>) -> *const c_char {
    let text = CString::new(text).unwrap_or_default();
    let start = text.as_ptr();
    texts.push(text);
    start
}
