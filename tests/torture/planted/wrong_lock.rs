//! `SET NX PX` with a shorter time than its holders take: a common lock, used wrongly. Under the
//! workload `mutex`, on a real server, the checkers must detect it.

use std::sync::Arc;

use redis::Cmd;

use crate::actor::Site;
use crate::checks;
use crate::clock::Stop;
use crate::crowd::Crowd;
use crate::history::{Asked, FULL_PROMISE, History};
use crate::words::packed;
use crate::workloads;
use rlock_testkit::Server;

/// Its holders believe that they have 30 seconds, and take up to 2 ms.
const ACQUIRE: &str = "if redis.call('SET',KEYS[1],ARGV[1],'NX','PX',1) \
    then return redis.call('INCR','tokens') end return false";
const RELEASE: &str = "if redis.call('GET',KEYS[1])==ARGV[1] \
    then redis.call('DEL',KEYS[1]) return 0 end return redis.error_reply('NOTHELD by you')";
const LOAD_MS: u64 = 1000;

fn set_nx(key: &str, owner: &str, asked: &Asked) -> Cmd {
    let script = match asked {
        Asked::Acquire(_) => ACQUIRE,
        Asked::Release { .. } => RELEASE,
        // It has no other commands; this one replies with an integer.
        _ => return packed("EXISTS nothing"),
    };
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(1).arg(key).arg(owner);
    command
}

#[test]
fn a_lock_whose_time_is_shorter_than_the_hold_is_found_out() {
    let server = Server::without_module();
    let mutex = workloads::ALL.iter().find(|workload| workload.name == "mutex").unwrap();
    let site = Site { words: set_nx, ..Site::fixed(server.url("")) };
    let crowd = Crowd::threads(mutex, 1, Arc::new(site));
    Stop::default().within(LOAD_MS);
    let history = History { ops: crowd.end(), events: Vec::new(), promise: FULL_PROMISE };
    let mut complaints = checks::check(&history, &checks::holds(&history));
    complaints.extend(checks::linear(&history).1);
    for checker in ["exclusion", "kept", "replies", "linear"] {
        let is_seen = complaints.iter().any(|wrong| wrong.checker == checker);
        assert!(is_seen, "{checker} saw nothing in {} operations", history.ops.len());
    }
}
