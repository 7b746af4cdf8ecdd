//! What the server reports about itself.

use super::*;

/// A change of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerChange {
    /// It became a primary or a replica.
    Role {
        /// A primary.
        is_primary: bool,
    },
    /// Its settings, which are being changed at this moment.
    Settings,
    /// A replica connected, and has all data or is about to read it; or a replica disconnected.
    Replica {
        /// Whether it is connected.
        is_there: bool,
    },
    /// The data of a primary replaced its own.
    Synced,
    /// Slots moved to or from this node in one step.
    SlotsMoved,
    /// It begins to load its data, or has finished or given up.
    Loading {
        /// Whether it is done.
        is_over: bool,
    },
}

/// Reports the fields of `INFO` one by one: name and number.
pub type Fields = fn(&mut dyn FnMut(&str, u64));

/// `REDISMODULE_EVENT_CLUSTER_SLOT_MIGRATION`, since Redis 8.4. After a migration, the keys of its
/// slots are removed without a callback.
const CLUSTER_SLOT_MIGRATION: u64 = 18;

impl Ctx {
    /// Subscribes to changes of the server.
    pub fn watch_server(&self, changed: fn(ServerChange)) {
        static CHANGED: std::sync::OnceLock<fn(ServerChange)> = std::sync::OnceLock::new();
        static IS_SYNCING: AtomicBool = AtomicBool::new(false);
        extern "C" fn on_event(
            _: *mut raw::RedisModuleCtx,
            event: raw::RedisModuleEvent,
            what: u64,
            _: *mut c_void,
        ) {
            let changed = |change| CHANGED.get().into_iter().for_each(|changed| changed(change));
            changed(match event.id {
                raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED => {
                    let is_primary = what == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
                    ServerChange::Role { is_primary }
                }
                raw::REDISMODULE_EVENT_CONFIG => ServerChange::Settings,
                raw::REDISMODULE_EVENT_REPLICA_CHANGE => {
                    let is_there = what == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE;
                    ServerChange::Replica { is_there }
                }
                CLUSTER_SLOT_MIGRATION => ServerChange::SlotsMoved,
                // The server loads the new data beside its own, and then swaps the two.
                raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD => match what {
                    raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => ServerChange::Synced,
                    _ => return,
                },
                _ => {
                    let is_over = what == raw::REDISMODULE_SUBEVENT_LOADING_ENDED
                        || what == raw::REDISMODULE_SUBEVENT_LOADING_FAILED;
                    let is_sync = what == raw::REDISMODULE_SUBEVENT_LOADING_REPL_START;
                    if IS_SYNCING.swap(is_sync, Relaxed) && is_over {
                        changed(ServerChange::Synced);
                    }
                    ServerChange::Loading { is_over }
                }
            });
        }
        CHANGED.get_or_init(|| changed);
        for id in [
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            raw::REDISMODULE_EVENT_CONFIG,
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
        ] {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            raw::subscribe_to_server_event(self.0, event, Some(on_event));
        }
        // On Valkey, this number means something else; an older Redis refuses it.
        if is_cluster() && !is_valkey() {
            let event = raw::RedisModuleEvent { id: CLUSTER_SLOT_MIGRATION, dataver: 1 };
            raw::subscribe_to_server_event(self.0, event, Some(on_event));
        }
    }

    /// Calls `forked` when the server has forked a child that saves the present data. Whatever the
    /// server writes to the append-only file from then on is in addition to what that child saves.
    pub fn watch_forks(&self, forked: fn(&Ctx)) {
        static FORKED: std::sync::OnceLock<fn(&Ctx)> = std::sync::OnceLock::new();
        extern "C" fn on_event(
            ctx: *mut raw::RedisModuleCtx,
            _: raw::RedisModuleEvent,
            what: u64,
            _: *mut c_void,
        ) {
            if what == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
                FORKED.get().into_iter().for_each(|forked| forked(&Ctx(ctx)));
            }
        }
        FORKED.get_or_init(|| forked);
        let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_FORK_CHILD, dataver: 1 };
        raw::subscribe_to_server_event(self.0, event, Some(on_event));
    }

    /// Makes the server ask for the fields of the module's section of `INFO`.
    pub fn answer_info(&self, fields: Fields) {
        static FIELDS: std::sync::OnceLock<Fields> = std::sync::OnceLock::new();
        extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
            // After a crash, our state may be in the middle of a change.
            if for_crash_report != 0 {
                return;
            }
            raw::add_info_section(ctx, None);
            let mut tell = |name: &str, value| {
                raw::add_info_field_unsigned_long_long(ctx, name, value);
            };
            FIELDS.get().into_iter().for_each(|fields| fields(&mut tell));
        }
        FIELDS.get_or_init(|| fields);
        raw::register_info_function(self.0, Some(on_info));
    }
}
