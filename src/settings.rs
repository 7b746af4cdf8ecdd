//! The module's settings: `CONFIG SET`, `redis.conf`, module arguments; and the server's own settings that
//! a user of locks is warned of.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use redis_module::RedisValue;
use redis_module::configuration::{ConfigurationFlags, register_i64_configuration};
use rlock_core::LeaseMs;
use rlock_core::grammar::Limits;
use rlock_core::text::quoted;

use crate::ffi::Ctx;

/// A number that can be configured as `rlock.<name>`.
struct Setting {
    name: &'static str,
    value: &'static AtomicI64,
    default: i64,
    min: i64,
    max: i64,
    unit: &'static str,
}

static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(0);
static MAX_LEASE_MS: AtomicI64 = AtomicI64::new(0);
static MAX_DEPTH: AtomicI64 = AtomicI64::new(0);

const LEASE_MS_MAX: i64 = LeaseMs::MAX.get().cast_signed();
/// The depth is kept in 16 bits.
const DEPTH_MAX: i64 = 65_535;

const SETTINGS: &[Setting] = &[
    Setting {
        name: "default-lease-ms",
        value: &DEFAULT_LEASE_MS,
        default: 30_000,
        min: 1,
        max: LEASE_MS_MAX,
        unit: " milliseconds",
    },
    Setting {
        name: "max-lease-ms",
        value: &MAX_LEASE_MS,
        default: LEASE_MS_MAX,
        min: 1,
        max: LEASE_MS_MAX,
        unit: " milliseconds",
    },
    Setting {
        name: "max-depth",
        value: &MAX_DEPTH,
        default: DEPTH_MAX,
        min: 1,
        max: DEPTH_MAX,
        unit: " levels",
    },
];

/// Reads module arguments, pairs of name and value in any order. Must come before anything is
/// registered, because a load that fails later leaves the server with dangling callbacks.
///
/// # Errors
/// The argument, and what it should be.
pub fn read(arguments: &[&[u8]]) -> Result<(), String> {
    for setting in SETTINGS {
        setting.value.store(setting.default, Relaxed);
    }
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            let name = pair.first().copied().unwrap_or_default();
            return Err(format!("module argument {} has no value", quoted(name)));
        };
        let known = |setting: &&Setting| setting.name.as_bytes().eq_ignore_ascii_case(name);
        let Some(setting) = SETTINGS.iter().find(known) else {
            let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
            let (name, names) = (quoted(name), names.join(", "));
            return Err(format!("module argument {name} is not one of {names}"));
        };
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        match number.filter(|number| (setting.min..=setting.max).contains(number)) {
            Some(number) => setting.value.store(number, Relaxed),
            None => {
                let Setting { name, min, max, unit, .. } = setting;
                let value = quoted(value);
                return Err(format!(
                    "module argument {name} must be an integer from {min} to {max}{unit}, not {value}"
                ));
            }
        }
    }
    Ok(())
}

/// Makes the settings known to the server, with what [`read`] read as their defaults.
///
/// # Errors
/// A setting in the configuration file is out of its range.
pub fn register(ctx: &Ctx) -> Result<(), String> {
    for setting in SETTINGS {
        register_i64_configuration(
            &ctx.wrapped(),
            setting.name,
            setting.value,
            setting.value.load(Relaxed),
            setting.min,
            setting.max,
            ConfigurationFlags::DEFAULT,
            None,
        );
    }
    ctx.load_settings()
}

/// The bounds of arguments, as configured now.
pub fn limits() -> Limits {
    let lease = |setting: &AtomicI64| {
        u64::try_from(setting.load(Relaxed)).ok().and_then(LeaseMs::new).unwrap_or(LeaseMs::MAX)
    };
    Limits {
        default_lease: lease(&DEFAULT_LEASE_MS),
        max_lease: lease(&MAX_LEASE_MS),
        max_depth: u16::try_from(MAX_DEPTH.load(Relaxed)).unwrap_or(u16::MAX),
    }
}

/// Warns of settings of the server under which locks are lost.
pub fn warn_of_server_settings(ctx: &Ctx) {
    let policy = server_setting(ctx, "maxmemory-policy");
    if !matches!(policy.as_deref(), None | Some("noeviction")) {
        ctx.warn(&format!(
            "rlock: maxmemory-policy is {}: an evicted lock is a lost lock, use noeviction",
            policy.unwrap_or_default()
        ));
    }
    let timeout = server_setting(ctx, "timeout");
    if !matches!(timeout.as_deref(), None | Some("0")) {
        ctx.warn(&format!(
            "rlock: timeout is {} s: the server closes idle connections, and with them their sessions, use 0",
            timeout.unwrap_or_default()
        ));
    }
}

fn server_setting(ctx: &Ctx, name: &str) -> Option<String> {
    let RedisValue::Array(pair) = ctx.wrapped().call("CONFIG", &["GET", name][..]).ok()? else {
        return None;
    };
    match pair.into_iter().nth(1)? {
        RedisValue::SimpleString(value) | RedisValue::BulkString(value) => Some(value),
        RedisValue::StringBuffer(value) => String::from_utf8(value).ok(),
        _ => None,
    }
}
