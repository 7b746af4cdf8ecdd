//! S1: one event may free several locks. All of them are free before the first queue is served, and
//! queues are served in key order: a group that came first is not overtaken at a later key by a
//! waiter for that key alone.

use crate::support::MapHost;

/// A group waits for `a` and `b`, and a later waiter for `b` alone, or for `c`.
fn waits(host: &MapHost) {
    assert_eq!(host.ask(21, "macquire 2 a b g BLOCK 0"), "");
    assert_eq!(host.ask(22, "acquire b s BLOCK 0"), "");
}

/// The replies of both in the end, and the line of `b`.
fn told(host: &MapHost) -> (Vec<String>, String) {
    let told = [host.turn(), host.turn(), host.turn()].concat();
    let who = told.iter().map(|line| line.split(' ').next().unwrap().to_owned());
    (who.filter(|client| client != "20:").collect(), host.line("b"))
}

fn group_first() -> (Vec<String>, String) {
    (vec!["21:".into()], "s".into())
}

#[test]
fn whatever_frees_both_locks_lets_in_the_group_that_came_first() {
    type Frees = fn(&MapHost);
    let begin_in_session: Frees = |host| {
        host.ask(1, "acquire b o SESSION");
        host.ask(1, "acquire a o SESSION");
    };
    let begin: Frees = |host| {
        host.ask(1, "macquire 2 a b o LEASE 1000");
    };
    let apart: Frees = |host| {
        host.ask(1, "acquire b o LEASE 1000");
        host.ask(1, "acquire a p LEASE 1000");
    };
    let ways: [(&str, Frees, Frees); 9] = [
        ("MRELEASE", begin, |host| drop(host.ask(1, "mrelease 2 a b o"))),
        ("MRELEASE in another order", begin, |host| drop(host.ask(1, "mrelease 2 b a o"))),
        ("the end of a session", begin_in_session, |host| host.close(1)),
        ("DEL a b", begin, |host| {
            host.remove("a");
            host.remove("b");
        }),
        ("DEL b a", begin, |host| {
            host.remove("b");
            host.remove("a");
        }),
        ("the end of a lease", begin, |host| host.at(1000)),
        ("two leases in one millisecond", apart, |host| host.at(1000)),
        ("a lease's end, seen first at b by MACQUIRE", begin, |host| {
            host.at(1000);
            assert_eq!(host.ask(3, "macquire 2 b a x"), "nil");
        }),
        ("a lease's end, seen first by MRENEW", begin, |host| {
            host.at(1000);
            assert_eq!(host.ask(1, "mrenew 2 b a o").split(' ').next(), Some("-NOTHELD"));
        }),
    ];
    for (what, begins, frees) in ways {
        let host = MapHost::primary();
        begins(&host);
        waits(&host);
        frees(&host);
        assert_eq!(told(&host), group_first(), "{what}");
    }
}

/// FLUSHALL, whatever the order in which the server goes through the locks.
#[test]
fn a_flush_lets_in_the_group_that_came_first() {
    for keys in ["a b", "b a"] {
        let host = MapHost::primary();
        keys.split(' ').for_each(|key| drop(host.ask(1, &format!("acquire {key} o"))));
        waits(&host);
        keys.split(' ').for_each(|key| host.remove(key));
        rlock_engine::events::flushed(&host, None);
        assert_eq!(told(&host), group_first(), "{keys}");
    }
}

/// A group loses its turn at `a` to a lock from outside, and before it has gone back, `a` and `b`
/// are flushed. Its next move depends on what the keys have by then.
#[test]
fn a_group_about_to_go_back_keeps_its_places_where_a_flush_frees_all() {
    for next in ["", "acquire a y", "release d o"] {
        let host = MapHost::primary();
        ["b", "d", "other"]
            .into_iter()
            .for_each(|key| drop(host.ask(1, &format!("acquire {key} o"))));
        // Work for groups within a command, at another lock.
        assert_eq!(host.ask(23, "macquire 2 d e h BLOCK 0"), "");
        waits(&host);
        host.turn();
        assert_eq!([host.line("a"), host.line("b")], ["g!", "g s"]);
        // A portion of the sweep is one task.
        host.world().tick = std::time::Duration::from_millis(10);
        host.put_lock("a", host.lock("other"));
        rlock_engine::events::key_came(&host, 0, b"a");
        let comes_soon = (0..10).any(|_| {
            host.turn();
            host.line("a") == "g"
        });
        assert!(comes_soon);
        assert_eq!([host.line("a"), host.line("b")], ["g", "g s"]);
        ["a", "b", "other"].into_iter().for_each(|key| host.remove(key));
        rlock_engine::events::flushed(&host, None);
        if !next.is_empty() {
            host.ask(2, next);
        }
        let told: Vec<String> = (0..10).flat_map(|_| host.turn()).collect();
        let mut told = told.iter().filter(|line| !line.starts_with("23:"));
        let first = told.next().map(|line| line.split(' ').next().unwrap());
        assert_eq!((first, host.line("b").as_str()), (Some("21:"), "s"), "{next:?}");
    }
}

/// A group that ends leaves all of its locks at once.
#[test]
fn a_group_that_leaves_its_locks_lets_in_the_group_that_came_first() {
    type Ends = fn(&MapHost);
    let ways: [(&str, Ends); 4] = [
        ("CANCEL at the first", |host| drop(host.ask(9, "cancel a early"))),
        ("CANCEL at the last", |host| drop(host.ask(9, "cancel b early"))),
        ("a closed connection", |host| host.close(20)),
        ("the end of its time", |host| host.at(1000)),
    ];
    for (what, ends) in ways {
        let host = MapHost::primary();
        host.ask(1, "acquire c o");
        host.ask(20, "macquire 3 a b c early BLOCK 1000");
        waits(&host);
        assert_eq!(host.line("a"), "early! g");
        ends(&host);
        assert_eq!(told(&host), group_first(), "{what}");
    }
}

/// An unheard grant is revoked at all of its locks at once.
#[test]
fn a_revoked_group_lets_in_the_group_that_came_first() {
    let host = MapHost::primary();
    host.ask(1, "macquire 2 a b o");
    host.ask(20, "macquire 2 a b early BLOCK 0");
    waits(&host);
    host.ask(1, "mrelease 2 a b o");
    assert_eq!(host.holds("b").split(' ').next(), Some("early"));
    host.close(20);
    assert_eq!(told(&host), group_first());
}

/// The same chain over more keys, with waiters for a single lock at each of the later ones.
#[test]
fn a_group_gets_every_lock_that_one_release_frees() {
    let host = MapHost::primary();
    host.ask(1, "macquire 5 a b c d e o");
    host.ask(21, "macquire 5 e d c b a g BLOCK 0");
    for (client, key) in ["e", "d", "c", "b"].into_iter().enumerate() {
        assert_eq!(host.ask(30 + client as u64, &format!("acquire {key} s{key} BLOCK 0")), "");
    }
    host.ask(1, "mrelease 5 a b c d e o");
    let told = [host.turn(), host.turn()].concat();
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("21: #"), "{told:?}");
    host.ask(21, "mrelease 5 a b c d e g");
    assert_eq!([host.turn(), host.turn()].concat().len(), 4, "then the others");
}

/// FORCE of one of a session's holds is two steps: its connection is lost, and its other holds end
/// with it.
#[test]
fn force_of_one_hold_of_a_session_is_two_steps() {
    let host = MapHost::primary();
    host.ask(1, "acquire a o SESSION");
    host.ask(1, "acquire b o SESSION");
    waits(&host);
    host.ask(9, "force b");
    assert_eq!([host.turn(), host.turn()].concat(), ["22: #3"]);
}

/// `RENAME c a`: all holds of one grant share its token, and the hold that comes to `a` is a READ.
#[test]
fn a_hold_from_another_key_does_not_cover_what_its_token_covered() {
    let host = MapHost::primary();
    host.ask(1, "acquire a early");
    assert_eq!(host.ask(20, "macquire 2 a c o MODES WRITE READ BLOCK 0"), "");
    assert_eq!(host.ask(21, "macquire 2 a c o BLOCK 0"), "");
    host.ask(1, "release a early");
    assert_eq!(host.turn().len(), 1);
    assert_eq!([host.line("a"), host.line("c")], ["", "o"]);
    let lock = host.lock("c");
    host.remove("c");
    host.put_lock("a", lock);
    assert_eq!([host.turn(), host.turn()].concat(), [""; 0]);
    assert_eq!([host.line("a"), host.line("c")], ["o", ""], "it waits for READ of `a` to end");
    host.ask(1, "release a o READ");
    let told = [host.turn(), host.turn()].concat();
    assert!(told.first().is_some_and(|line| line.starts_with("21: #")), "{told:?}");
}

/// A hold that covered a lock for a group expires beside the hold of another owner.
#[test]
fn the_end_of_a_lease_that_covers_a_lock_is_noticed() {
    for waits in [true, false] {
        let host = MapHost::primary();
        host.ask(1, "acquire c x LEASE 60000");
        host.ask(1, "acquire a p READ LEASE 60000");
        host.ask(2, "acquire a o READ LEASE 1000");
        if waits {
            host.ask(5, "acquire a w BLOCK 0");
        }
        assert_eq!(host.ask(3, "macquire 3 a b c o MODES 1 WRITE WRITE BLOCK 0"), "");
        assert_eq!(host.ask(4, "acquire b z BLOCK 0"), "");
        assert_eq!((host.line("a").contains('o'), host.line("b")), (false, "o! z".into()));
        host.at(1000);
        assert_eq!([host.turn(), host.turn(), host.turn()].concat(), ["4: #4"], "{waits}");
        assert!(host.line("a").ends_with('o'), "{}", host.line("a"));
    }
}

/// The server removes a key some time after its only hold has expired. The group must know at once.
#[test]
fn a_lease_that_alone_covers_a_lock_ends_at_its_deadline() {
    let host = MapHost::primary();
    host.ask(1, "acquire c x LEASE 60000");
    host.ask(2, "acquire a o READ LEASE 1000");
    assert_eq!(host.alarm(), None, "the server expires the key");
    assert_eq!(host.ask(3, "macquire 2 a c o MODES READ WRITE BLOCK 0"), "");
    assert_eq!(host.alarm(), Some(1000));
}

/// The same, but the key returns to the group at once: nothing is lost.
#[test]
fn a_lease_that_covers_a_lock_ends_and_its_group_keeps_what_it_has() {
    let host = MapHost::primary();
    host.ask(1, "acquire c x LEASE 60000");
    host.ask(1, "acquire a p READ LEASE 60000");
    host.ask(2, "acquire a o READ LEASE 1000");
    host.ask(3, "macquire 3 a b c o MODES READ WRITE WRITE BLOCK 0");
    host.ask(4, "acquire b z BLOCK 0");
    host.at(1000);
    assert_eq!([host.turn(), host.turn()].concat(), [""; 0]);
    assert_eq!((host.line("a"), host.line("b")), ("o!".into(), "o! z".into()));
}

/// In the entry of a wait, `key` is the key at which it last waited.
#[test]
fn the_slow_log_names_the_lock_at_which_a_group_waited_last() {
    for (held, owed) in [("a", "a"), ("b", "b"), ("d", "d"), ("a b", "b"), ("b d", "d")] {
        let host = MapHost::primary();
        host.world().bounds.slow.wait_ms = Some(30);
        held.split(' ').for_each(|key| drop(host.ask(1, &format!("acquire {key} x-{key}"))));
        host.ask(2, "macquire 4 a b c d o MODES WRITE 3 WRITE READ BLOCK 0");
        host.at(60);
        held.split(' ').for_each(|key| drop(host.ask(1, &format!("release {key} x-{key}"))));
        assert_eq!(host.turn().len(), 1);
        let shown = host.state_of(|state| {
            let all = state.manager.slowlog.newest();
            all.map(|one| (one.key(), one.mode.to_owned(), one.limit)).collect::<Vec<_>>()
        });
        let (mode, limit) = match owed {
            "b" => ("read", 3),
            "d" => ("read", 0),
            _ => ("write", 0),
        };
        assert_eq!(shown, [(owed.into(), mode.into(), limit)], "{held}");
    }
}

/// A group departs between the step that freed its lock and the step that serves the queue.
#[test]
fn nothing_is_left_of_a_group_that_leaves_before_it_is_served() {
    let host = MapHost::primary();
    host.ask(1, "acquire a o SESSION");
    host.ask(2, "acquire b x");
    assert_eq!(host.ask(3, "macquire 2 a b o BLOCK 0"), "");
    host.world().tick = std::time::Duration::from_millis(1);
    host.close(1);
    assert_eq!(host.turn(), [""; 0], "the portion ends before the queue is served");
    host.close(3);
    assert_eq!(told(&host), (vec![], String::new()));
    assert_eq!(host.ask(4, "acquire a y"), "#3");
}
