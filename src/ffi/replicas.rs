//! The replication stream: its length, and the offsets that replicas have acknowledged.

use std::ffi::CStr;

use rlock_engine::{Replication, protocol};

use super::*;

impl Ctx {
    /// The replication stream and its replicas. Takes a few microseconds.
    pub fn replication(&self) -> Replication {
        // An administrator may have renamed ROLE.
        self.role().unwrap_or_else(|| self.replication_section())
    }

    /// From `ROLE`.
    fn role(&self) -> Option<Replication> {
        // SAFETY: context; the format names no arguments. Nobody else has the reply.
        unsafe {
            let call = there(raw::RedisModule_Call);
            let reply = call(self.0, c"ROLE".as_ptr(), c"".as_ptr());
            read_reply(reply, protocol::replication)
        }
    }

    /// From the section `replication` of `INFO`.
    fn replication_section(&self) -> Replication {
        // SAFETY: context; we free the data, after copying what we keep. A missing field is null,
        // or 0.
        unsafe {
            let data = there(raw::RedisModule_GetServerInfo)(self.0, c"replication".as_ptr());
            let number = there(raw::RedisModule_ServerInfoGetFieldUnsigned);
            let offset = number(data, c"master_repl_offset".as_ptr(), null_mut());
            let text = there(raw::RedisModule_ServerInfoGetFieldC);
            let mut acknowledged = Vec::new();
            for place in 0.. {
                let name = c_string(&format!("slave{place}"));
                let line = text(data, name.as_ptr());
                if line.is_null() {
                    break;
                }
                acknowledged.extend(acknowledged_in(&CStr::from_ptr(line).to_string_lossy()));
            }
            there(raw::RedisModule_FreeServerInfo)(self.0, data);
            Replication { offset, acknowledged }
        }
    }

    /// Asks the replicas for acknowledgments, which they otherwise send once a second. The request
    /// goes into the replication stream but not into the append-only file.
    pub fn ask_replicas(&self) {
        // SAFETY: context; the format names two strings, and excludes the append-only file.
        unsafe {
            let replicate = there(raw::RedisModule_Replicate);
            let (ask, all) = (c"GETACK".as_ptr(), c"*".as_ptr());
            replicate(self.0, c"REPLCONF".as_ptr(), c"Acc".as_ptr(), ask, all);
        }
    }
}

/// `ip=…,port=…,state=online,offset=…,lag=…`
fn acknowledged_in(line: &str) -> Option<u64> {
    let field = |name: &str| line.split(',').find_map(|field| field.strip_prefix(name));
    let offset = field("offset=")?.parse().ok()?;
    (field("state=") == Some("online") && offset > 0).then_some(offset)
}

/// Makes the server call `work` before each sleep of its loop: after everything that is done in the
/// iteration, and before any of its output is written. `None` ends that; do not call this from
/// within `work`.
pub fn before_sleep(work: Option<fn(&Ctx)>) {
    static WORK: std::sync::OnceLock<fn(&Ctx)> = std::sync::OnceLock::new();
    extern "C" fn on_event(
        ctx: *mut raw::RedisModuleCtx,
        _: raw::RedisModuleEvent,
        what: u64,
        _: *mut c_void,
    ) {
        if what == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
            WORK.get().into_iter().for_each(|work| work(&Ctx(ctx)));
        }
    }
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };
    let callback: raw::RedisModuleEventCallback = match work {
        Some(work) => {
            WORK.get_or_init(|| work);
            Some(on_event)
        }
        None => None,
    };
    raw::subscribe_to_server_event(DETACHED.load(Relaxed), event, callback);
}
