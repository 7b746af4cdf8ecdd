//! The module's settings (`CONFIG SET`, `redis.conf`, module arguments), and warnings about
//! settings of the server that endanger locks.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use redis_module::RedisValue;
use redis_module::configuration::{
    ConfigurationFlags, register_bool_configuration, register_i64_configuration,
};
use rlock_core::LeaseMs;
use rlock_core::grammar::{self, Limits};
use rlock_core::manager::Bounds;
use rlock_core::slow::Slow;
use rlock_core::text::quoted;

use crate::ffi::{self, Ctx, Exclusive};

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
static MAX_WAITERS: AtomicI64 = AtomicI64::new(0);
static MAX_TELLS: AtomicI64 = AtomicI64::new(0);
static MAX_TELL_MS: AtomicI64 = AtomicI64::new(0);
static MAX_TICKETS: AtomicI64 = AtomicI64::new(0);
static MAX_SESSIONS: AtomicI64 = AtomicI64::new(0);
static DETECTS_DEADLOCKS: AtomicBool = AtomicBool::new(true);
static ACKS: AtomicI64 = AtomicI64::new(0);
static ACKS_TIMEOUT_MS: AtomicI64 = AtomicI64::new(0);
static GRACE_MS: AtomicI64 = AtomicI64::new(0);
static SLOW_WAIT_MS: AtomicI64 = AtomicI64::new(0);
static SLOW_HOLD_MS: AtomicI64 = AtomicI64::new(0);
static SLOWLOG_MAX_LEN: AtomicI64 = AtomicI64::new(0);
const DEADLOCK_DETECTION: &str = "deadlock-detection";

const LEASE_MS_MAX: i64 = LeaseMs::MAX.get().cast_signed();
/// The depth is stored in 16 bits.
const DEPTH_MAX: i64 = 65_535;

static SETTINGS: &[Setting] = &[
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
    // The server needs about 39 KB for each client that a module blocks.
    Setting {
        name: "max-waiters",
        value: &MAX_WAITERS,
        default: 5000,
        min: 0,
        max: 1_000_000,
        unit: " connections",
    },
    Setting {
        name: "max-tells",
        value: &MAX_TELLS,
        default: 1_000_000,
        min: 0,
        max: 100_000_000,
        unit: " requests",
    },
    Setting {
        name: "max-tell-ms",
        value: &MAX_TELL_MS,
        default: 3_600_000,
        min: 1000,
        max: LEASE_MS_MAX,
        unit: " milliseconds",
    },
    Setting {
        name: "max-tickets",
        value: &MAX_TICKETS,
        default: 1_000_000,
        min: 0,
        max: 100_000_000,
        unit: " tickets",
    },
    // The server renews each session every third of its lease.
    Setting {
        name: "max-sessions",
        value: &MAX_SESSIONS,
        default: 10_000,
        min: 0,
        max: 1_000_000,
        unit: " holds",
    },
    // Replicas that must acknowledge each grant and renewal, even if the request asks for fewer.
    Setting {
        name: "acks",
        value: &ACKS,
        default: 0,
        min: 0,
        max: grammar::ACKS_MAX.cast_signed(),
        unit: " replicas",
    },
    Setting {
        name: "acks-timeout-ms",
        value: &ACKS_TIMEOUT_MS,
        default: 2000,
        min: 1,
        max: LEASE_MS_MAX,
        unit: " milliseconds",
    },
    // After a start or a promotion, nothing is granted for this long.
    Setting {
        name: "grace-ms",
        value: &GRACE_MS,
        default: 0,
        min: 0,
        max: LEASE_MS_MAX,
        unit: " milliseconds",
    },
    // A negative value means that waits, or holds, are not logged.
    Setting {
        name: "slow-wait-ms",
        value: &SLOW_WAIT_MS,
        default: 1000,
        min: -1,
        max: LEASE_MS_MAX,
        unit: " milliseconds",
    },
    Setting {
        name: "slow-hold-ms",
        value: &SLOW_HOLD_MS,
        default: -1,
        min: -1,
        max: LEASE_MS_MAX,
        unit: " milliseconds",
    },
    // An entry with a hundred holders takes up to 15 KB.
    Setting {
        name: "slowlog-max-len",
        value: &SLOWLOG_MAX_LEN,
        default: 128,
        min: 0,
        max: 10_000,
        unit: " entries",
    },
];

/// Reads the module's arguments: pairs of name and value, in any order. Must run before anything is
/// registered, because if the load fails later, the server keeps dangling callbacks.
///
/// # Errors
/// Names the argument and its valid values.
pub fn read(arguments: &[&[u8]]) -> Result<(), String> {
    for setting in SETTINGS {
        setting.value.store(setting.default, Relaxed);
    }
    DETECTS_DEADLOCKS.store(true, Relaxed);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            let name = pair.first().copied().unwrap_or_default();
            return Err(format!("module argument {} has no value", quoted(name)));
        };
        if name.eq_ignore_ascii_case(DEADLOCK_DETECTION.as_bytes()) {
            read_detection(value)?;
            continue;
        }
        let known = |setting: &&Setting| setting.name.as_bytes().eq_ignore_ascii_case(name);
        let Some(setting) = SETTINGS.iter().find(known) else {
            let names = SETTINGS.iter().map(|setting| setting.name).chain([DEADLOCK_DETECTION]);
            let (name, names) = (quoted(name), names.collect::<Vec<_>>().join(", "));
            return Err(format!("module argument {name} is not one of {names}"));
        };
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        match number.filter(|number| (setting.min..=setting.max).contains(number)) {
            Some(number) => setting.value.store(number, Relaxed),
            None => {
                let Setting { name, min, max, unit, .. } = setting;
                let value = quoted(value);
                return Err(format!(
                    "module argument {name} must be an integer from {min} to {max}{unit}, not \
                     {value}"
                ));
            }
        }
    }
    Ok(())
}

fn read_detection(value: &[u8]) -> Result<(), String> {
    let is_on = match value.to_ascii_lowercase().as_slice() {
        b"yes" => true,
        b"no" => false,
        _ => {
            let value = quoted(value);
            return Err(format!(
                "module argument {DEADLOCK_DETECTION} must be yes or no, not {value}"
            ));
        }
    };
    DETECTS_DEADLOCKS.store(is_on, Relaxed);
    Ok(())
}

/// Registers the settings with the server. The values that [`read`] found are their defaults.
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
    register_bool_configuration(
        &ctx.wrapped(),
        DEADLOCK_DETECTION,
        &DETECTS_DEADLOCKS,
        DETECTS_DEADLOCKS.load(Relaxed),
        ConfigurationFlags::DEFAULT,
        None,
    );
    ctx.load_settings()
}

/// The configured limits on what this server stores.
pub fn bounds() -> Bounds {
    let count = |setting: &AtomicI64| usize::try_from(number(setting)).unwrap_or(usize::MAX);
    Bounds {
        max_depth: max_depth(),
        max_waiters: count(&MAX_WAITERS),
        max_tells: count(&MAX_TELLS),
        max_tell_ms: number(&MAX_TELL_MS),
        max_tickets: count(&MAX_TICKETS),
        max_sessions: count(&MAX_SESSIONS),
        confirm_ms: number(&ACKS_TIMEOUT_MS),
        grace_ms: number(&GRACE_MS),
        slow: Slow {
            wait_ms: u64::try_from(SLOW_WAIT_MS.load(Relaxed)).ok(),
            hold_ms: u64::try_from(SLOW_HOLD_MS.load(Relaxed)).ok(),
        },
        slowlog_max: count(&SLOWLOG_MAX_LEN),
    }
}

/// `rlock.deadlock-detection`
pub fn detects_deadlocks() -> bool {
    DETECTS_DEADLOCKS.load(Relaxed)
}

/// The configured limits on arguments.
pub fn limits() -> Limits {
    let lease = |setting: &AtomicI64| LeaseMs::new(number(setting)).unwrap_or(LeaseMs::MAX);
    Limits {
        default_lease: lease(&DEFAULT_LEASE_MS),
        max_lease: lease(&MAX_LEASE_MS),
        max_depth: max_depth(),
        acks: u8::try_from(ACKS.load(Relaxed)).unwrap_or(0),
    }
}

/// A setting whose minimum is not negative, which the server checks.
fn number(setting: &AtomicI64) -> u64 {
    setting.load(Relaxed).cast_unsigned()
}

fn max_depth() -> u16 {
    u16::try_from(MAX_DEPTH.load(Relaxed)).unwrap_or(u16::MAX)
}

/// The warnings found by the previous check of the server's settings.
static BEFORE: Exclusive<Vec<String>> = Exclusive::empty();

/// Logs a warning for each setting of the server that can lose locks: at load, and when one of
/// them changes.
pub fn warn_of_server_settings(ctx: &Ctx) {
    let warnings = warnings(ctx);
    let before = BEFORE.with(|before| std::mem::replace(before, warnings.clone()));
    for warning in warnings.iter().filter(|warning| !before.contains(warning)) {
        ctx.warn(warning);
    }
}

fn warnings(ctx: &Ctx) -> Vec<String> {
    let mut warnings = Vec::new();
    // If CONFIG is renamed, the settings are unknown, and there is no warning.
    let policy = server_setting(ctx, "maxmemory-policy");
    if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
        warnings.push(format!(
            "maxmemory-policy is {policy}: a lock that is evicted can be granted to a second \
             owner; use noeviction"
        ));
    }
    if let Some(timeout) = server_setting(ctx, "timeout").filter(|timeout| timeout != "0") {
        warnings.push(format!(
            "timeout is {timeout} s: the server closes idle connections, which ends their \
             sessions; use 0"
        ));
    }
    let max_clients = server_setting(ctx, "maxclients").and_then(|max| max.parse::<usize>().ok());
    let max_waiters = bounds().max_waiters;
    if let Some(max_clients) = max_clients.filter(|max_clients| max_waiters > max_clients / 2) {
        warnings.push(format!(
            "rlock.max-waiters is {max_waiters}, more than half of maxclients, which is \
             {max_clients}: waiters may use up the connections that holders need"
        ));
    }
    let is_off = |name, value| server_setting(ctx, name).is_some_and(|set| set == value);
    if is_off("save", "") && is_off("appendonly", "no") {
        warnings.push(
            "nothing is saved (save is \"\", appendonly is no): a restart ends every lock; use \
             appendonly yes"
                .into(),
        );
    }
    let events = server_setting(ctx, "notify-keyspace-events");
    if let Some(events) = events.filter(|events| HAD_TURN.load(Relaxed) && !tells_turns(events)) {
        warnings.push(format!(
            "notify-keyspace-events is \"{events}\": turns are not published to owners that wait \
             with QUEUE; use KEd"
        ));
    }
    warnings
}

/// Whether a ticket has had its turn.
static HAD_TURN: AtomicBool = AtomicBool::new(false);

/// Whether keyspace or keyevent notifications of modules are on.
fn tells_turns(events: &str) -> bool {
    events.contains(['K', 'E']) && events.contains(['A', 'd'])
}

/// A ticket has its turn. From the first turn on, it matters whether anybody gets the event.
pub fn turn_was_published() {
    if !HAD_TURN.swap(true, Relaxed) {
        // Later, because this is called in the middle of a step.
        ffi::after(0, warn_of_server_settings);
    }
}

fn server_setting(ctx: &Ctx, name: &str) -> Option<String> {
    let RedisValue::Array(pair) = ctx.wrapped().call("CONFIG", &["GET", name][..]).ok()? else {
        return None;
    };
    ffi::text_of(pair.into_iter().nth(1)?)
}
