//! I/O threads may work on a connection while the module closes it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rlock_testkit::{Server, Waiter, until};

/// Sends a hundred commands at a time until its connection is closed, or `is_over`.
fn pipelines(server: &Server, own: usize, is_over: &AtomicBool) {
    let lines = vec!["SET mark value"; 100];
    while !is_over.load(Relaxed) {
        let mut one = Waiter::may_connect(&server.socket()).unwrap();
        let is_tied = one.may_say_all(&[&format!("RLOCK.ACQUIRE door:{own} o{own} SESSION")])
            && matches!(one.may_reply(20_000), Ok(Some(Ok(_))));
        for _ in 0..20 {
            if is_over.load(Relaxed) || !one.may_say_all(&lines) {
                break;
            }
            let are_told = (0..lines.len()).all(|_| one.may_reply(20_000).is_ok());
            if !are_told {
                assert!(is_tied, "a connection without a session was closed");
                break;
            }
        }
    }
}

#[test]
fn sessions_that_are_lost_under_load_with_io_threads_break_nothing() {
    let server = Server::of("io-threads 4\n");
    let mut client = server.client();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for own in 0..4 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || pipelines(server, own, is_over));
        }
        let mut lost = 0;
        for round in 0..2_000 {
            lost += client.number(&format!("RLOCK.FORCE door:{}", round % 4));
        }
        is_over.store(true, Relaxed);
        assert!(lost > 0);
    });
    assert!(server.is_running());
    until(5_000, || client.gauges() == (0, 0, 0));
}
