//! Hand-off: the order in which the engine replicates, publishes and replies, and who gets a reply.

use crate::support::MapHost;
use rlock_core::WaiterId;
use rlock_engine::{Deferred, blocked};

/// Ann holds `k`; connections 2, 3, … wait for it, as owners `o2`, `o3`, ….
fn held_with_waiters(count: u64) -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    for client in 2..2 + count {
        assert_eq!(host.ask(client, &format!("acquire k o{client} BLOCK 0")), "");
        host.world().users.insert(client, format!("u{client}"));
    }
    host.take_log();
    host
}

/// The same, each authenticated as `u2`, `u3`, ….
fn held_with_users(count: u64) -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    for client in 2..2 + count {
        host.world().users.insert(client, format!("u{client}"));
        assert_eq!(host.ask(client, &format!("acquire k o{client} BLOCK 0")), "");
    }
    host.take_log();
    host
}

fn deny(host: &MapHost, users: &[&str]) {
    host.world().denied.extend(users.iter().map(|user| (*user).to_owned()));
}

#[test]
fn a_hand_off_is_replicated_then_published_then_answered() {
    let host = held_with_waiters(1);
    assert_eq!(host.ask(1, "release k ann"), "0");
    assert_eq!(
        host.take_log(),
        [
            "replicated apply",
            "seen: decided k 2 changes 2 events 0 pending: Count(0)",
            "signalled k",
            "published rlock.released k",
            "published rlock.acquired k",
            "seen: answered #2 for 30000",
            "unblocked 2",
        ]
    );
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.holds("k"), "o2 write depth=1 until=30000");
}

/// The server writes to connections in the reverse order of their replies.
#[test]
fn a_count_is_replied_before_those_who_waited_are_answered() {
    for free in ["release k ann", "force k", "mrelease 1 k ann"] {
        for wait in ["acquire k bob BLOCK 0", "macquire 2 k z bob BLOCK 0"] {
            for tell in ["", " TELL one 7"] {
                let host = MapHost::primary();
                host.world().channels.listening.insert(b"one".to_vec());
                host.ask(1, "acquire k ann");
                host.ask(2, &format!("{wait}{tell}"));
                let said = host.ask(1, free);
                assert!(["0", "1"].contains(&said.as_str()), "{free}: {said}");
                assert_eq!(host.world().channels.replied_before, [1], "{free}, {wait}{tell}");
            }
        }
    }
}

#[test]
fn a_wait_alone_changes_nothing_that_others_see() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.take_log();
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0"), "");
    assert_eq!(host.did(), ["blocked 2"]);
}

#[test]
fn readers_that_enter_together_are_answered_in_their_order() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    for client in 2..5 {
        host.ask(client, &format!("acquire k o{client} READ BLOCK 0 WITHTTL"));
    }
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["2: *2 #2 30000", "3: *2 #3 30000", "4: *2 #4 30000"]);
}

#[test]
fn the_reply_is_asked_for_within_the_hand_off_where_the_server_does_so() {
    let host = held_with_waiters(1);
    host.world().replies_at_once = true;
    host.ask(1, "release k ann");
    assert_eq!(host.did().last().unwrap(), "told 2: #2");
    host.close(2);
    host.turn();
    assert_eq!(host.holds("k"), "o2 write depth=1 until=30000", "it may have read the reply");
}

#[test]
fn a_grant_is_revoked_if_its_connection_closes_before_the_reply() {
    let host = held_with_waiters(2);
    host.ask(1, "release k ann");
    host.close(2);
    assert_eq!(host.take_deferred(), [(0, Deferred::Sweep)]);
    rlock_engine::run_deferred(&host, Deferred::Sweep);
    assert_eq!(host.turn(), ["3: #3"]);
    assert_eq!(host.holds("k"), "o3 write depth=1 until=30000");
}

#[test]
fn a_grant_stands_if_its_connection_closes_after_the_reply() {
    let host = held_with_waiters(2);
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["2: #2"]);
    host.close(2);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.holds("k"), "o2 write depth=1 until=30000");
}

#[test]
fn a_grant_is_revoked_if_its_reply_is_lost() {
    let host = held_with_waiters(2);
    host.ask(1, "release k ann");
    let waiter = host.waiter(2);
    assert_eq!(host.deliver(waiter), "2: #2");
    blocked::over(&host, WaiterId::from(waiter), true);
    assert_eq!(host.turn(), ["3: #3"]);
    assert_eq!(host.holds("k"), "o3 write depth=1 until=30000");
}

#[test]
fn a_waiter_that_lost_the_right_is_refused_and_the_next_one_gets_the_lock() {
    let host = held_with_users(2);
    deny(&host, &["u2"]);
    host.ask(1, "release k ann");
    let told = host.turn();
    assert!(told[0].starts_with("2: -NOPERM the user lost permission"), "{told:?}");
    assert_eq!(told[1..], ["3: #2"]);
    assert_eq!(host.holds("k"), "o3 write depth=1 until=30000");
}

#[test]
fn all_of_those_that_lost_the_right_are_refused() {
    let host = held_with_users(5);
    deny(&host, &["u2", "u3", "u5"]);
    host.ask(1, "release k ann");
    let told = host.turn();
    let code = |line: &String| line.split(" the").next().unwrap().to_owned();
    let codes: Vec<String> = told.iter().map(code).collect();
    assert_eq!(codes, ["2: -NOPERM", "3: -NOPERM", "4: #2"]);
    host.ask(4, "release k o4");
    assert_eq!(host.turn().len(), 2);
    assert_eq!(host.holds("k"), "o6 write depth=1 until=30000");
}

#[test]
fn readers_without_the_right_do_not_enter_with_the_others() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    for client in 2..5 {
        host.world().users.insert(client, format!("u{client}"));
        host.ask(client, &format!("acquire k o{client} READ BLOCK 0"));
    }
    deny(&host, &["u3"]);
    host.ask(1, "release k ann");
    assert_eq!(host.turn().len(), 3);
    let holds = "o2 read depth=1 until=30000, o4 read depth=1 until=30000";
    assert_eq!(host.holds("k"), holds);
}

#[test]
fn a_key_is_deleted_if_the_only_one_granted_lost_the_right() {
    let host = held_with_users(1);
    deny(&host, &["u2"]);
    assert_eq!(host.ask(1, "release k ann"), "0", "the reply is that of the release");
    assert_eq!(host.turn().len(), 1);
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_denial_leaves_the_reply_to_the_caller_as_it_is() {
    let host = held_with_users(1);
    deny(&host, &["u2"]);
    assert_eq!(host.ask(1, "force k"), "1");
}

#[test]
fn a_wait_that_ends_without_a_grant_asks_for_no_right() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob BLOCK 100");
    deny(&host, &["app"]);
    host.at(100);
    assert_eq!(host.turn(), ["2: nil"]);
    assert_eq!(host.world().rights_asked, 0);
}

#[test]
fn a_hand_off_asks_once() {
    let host = held_with_waiters(3);
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.world().rights_asked, 1);
    host.at(30_000);
    assert_eq!(host.turn(), ["3: #3"], "when a lease expires, too");
    assert_eq!(host.world().rights_asked, 2);
    assert_eq!(host.holds("k"), "o3 write depth=1 until=60000");
}

#[test]
fn what_was_refused_is_in_no_effect_and_no_event() {
    let host = held_with_users(2);
    deny(&host, &["u2"]);
    host.ask(1, "release k ann");
    let log = host.take_log();
    let of = |event: &str| log.iter().filter(|line| line.contains(event)).count();
    assert_eq!((of("rlock.acquired"), of("rlock.disconnected")), (1, 0), "{log:#?}");
    assert_eq!(host.turn()[1..], ["3: #2"], "and no token is spent");
}

/// Bob holds READ, waits for WRITE on connection 3, and asks to upgrade on connection 4.
fn upgraded_with_a_waiter(denied: &[&str]) -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob READ BLOCK 0");
    host.world().users.insert(3, "u3".into());
    host.ask(3, "acquire k bob SESSION BLOCK 0");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["2: #2"]);
    deny(&host, denied);
    assert_eq!(host.ask(4, "acquire k bob UPGRADE SESSION"), "#3");
    host
}

#[test]
fn waits_that_enter_with_an_upgrade_leave_it_tied_to_the_connection_that_asked_last() {
    let host = upgraded_with_a_waiter(&[]);
    assert_eq!(host.turn(), ["3: #3"]);
    host.close(3);
    host.turn();
    assert!(host.holds("k").contains("write depth=2"), "{}", host.holds("k"));
    host.close(4);
    host.turn();
    assert!(!host.holds("k").contains("write"), "{}", host.holds("k"));
}

#[test]
fn a_re_entry_without_the_right_is_refused() {
    let host = upgraded_with_a_waiter(&["u3"]);
    assert!(host.turn()[0].starts_with("3: -NOPERM"));
    assert!(host.holds("k").contains("write depth=1"), "{}", host.holds("k"));
}

#[test]
fn a_replica_has_the_same_lock_after_a_denial() {
    let (host, replica) = (held_with_users(3), MapHost::replica());
    deny(&host, &["u2"]);
    host.ask(1, "release k ann");
    replica.follow(&host);
    assert_eq!(replica.lock("k"), host.lock("k"));
    assert_eq!(replica.holds("k"), "o3 write depth=1 until=30000");
}

#[test]
fn the_right_is_asked_of_the_user_that_began_the_wait() {
    let host = held_with_waiters(1);
    deny(&host, &["u2"]);
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["2: #2"], "it logged in as u2 only after it had begun to wait");
}

#[test]
fn rights_are_asked_of_waiters_that_acknowledgments_hold_back() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire k ann");
    for client in 2..5 {
        host.world().users.insert(client, format!("u{client}"));
        host.ask(client, &format!("acquire k o{client} BLOCK 0 ACKS 1"));
    }
    deny(&host, &["u2", "u3"]);
    host.ask(1, "release k ann");
    host.deliver_all();
    let told = host.did().into_iter().filter(|line| line.starts_with("told")).collect::<Vec<_>>();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("told 2: -NOPERM"), "{told:?}");
    assert!(told[1].starts_with("told 3: -NOPERM"), "{told:?}");
    assert_eq!(host.holds("k"), "o4 write depth=1 until=30000");
    host.turn();
    host.world().acknowledged = vec![10_000];
    assert_eq!(host.turn(), ["4: #2"]);
}

#[test]
fn rights_are_asked_of_those_who_get_what_a_pending_waiter_lost() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire k ann");
    for (client, acks) in [(2, " ACKS 1"), (3, ""), (4, "")] {
        host.world().users.insert(client, format!("u{client}"));
        host.ask(client, &format!("acquire k o{client} BLOCK 0{acks}"));
    }
    deny(&host, &["u2", "u3"]);
    host.ask(1, "release k ann");
    let told = host.turn();
    assert_eq!(told.iter().filter(|line| line.contains("-NOPERM")).count(), 2, "{told:?}");
    assert_eq!(host.holds("k"), "o4 write depth=1 until=30000");
}

#[test]
fn those_with_the_right_stay_pending_when_one_without_it_is_refused() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire k ann");
    for client in 2..5 {
        host.world().users.insert(client, format!("u{client}"));
        host.ask(client, &format!("acquire k o{client} READ BLOCK 0 ACKS 1"));
    }
    deny(&host, &["u3"]);
    host.ask(1, "release k ann");
    assert!(host.turn()[0].starts_with("3: -NOPERM"));
    host.world().acknowledged = vec![10_000];
    assert_eq!(host.turn(), ["2: #2", "4: #3"]);
}

#[test]
fn an_answer_within_a_script_follows_after_the_script() {
    let host = held_with_waiters(2);
    host.world().must_answer_later = true;
    host.ask(1, "release k ann");
    assert!(!host.did().iter().any(|line| line.starts_with("unblocked")));
    assert!(host.state_of(|state| state.is_late(WaiterId::from(1)) && !state.is_at_rest()));
    host.ask(1, "force k");
    assert_eq!(host.take_deferred(), [(0, Deferred::Answer)], "once for both");
    host.take_log();
    rlock_engine::run_deferred(&host, Deferred::Answer);
    assert_eq!(host.did()[..2], ["unblocked 2", "unblocked 3"]);
    assert!(!host.state_of(|state| state.is_late(WaiterId::from(1))));
    host.ask(4, "acquire k dan BLOCK 0");
    host.ask(1, "force k");
    assert_eq!(host.take_deferred(), [(0, Deferred::Answer)], "and again the next time");
}

#[test]
fn a_connection_is_answered_once() {
    let host = held_with_waiters(1);
    host.world().must_answer_later = true;
    host.ask(1, "release k ann");
    host.ask(2, "cancel k o2");
    host.run(Deferred::Answer);
    assert_eq!(host.did().iter().filter(|line| *line == "unblocked 2").count(), 1);
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.handles(), 0);
}

#[test]
fn a_ticket_that_has_its_turn_is_published_after_the_changes() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k b\u{7}\0b QUEUE 60000");
    host.take_log();
    host.ask(1, "release k ann");
    assert_eq!(
        host.take_log()[2..],
        [
            "seen: decided k 1 changes 1 events 0 pending: Count(0)",
            "signalled k",
            "published rlock.released k",
            "published rlock.turn:b\u{7}\\x00b k",
            "seen: turn k b\u{7}\0b",
        ]
    );
}

#[test]
fn a_session_that_a_hand_off_ends_is_closed_with_the_command() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.ask(2, "acquire k bob BLOCK 0");
    host.take_log();
    assert_eq!(host.ask(3, "force k"), "1");
    assert_eq!(host.did().last().unwrap(), "closes 1 (Command)");
}

#[test]
fn a_replica_that_replays_a_long_history_has_the_same_locks() {
    let (host, replica) = (MapHost::primary(), MapHost::replica());
    let mut seed: u64 = 7;
    let mut choose = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let mut told = 0;
    for step in 0..3000 {
        let (client, key) = (choose(6) + 1, choose(3));
        let is_blocked = host.world().waiting.values().any(|one| one.client == client);
        if is_blocked {
            host.ask(0, &format!("release k{key} o{}", choose(6) + 1));
        } else {
            let command = match choose(8) {
                0 => format!("acquire k{key} o{client} READ LEASE 50"),
                1 => format!("acquire k{key} o{client} LEASE 80 QUEUE 30"),
                2 => format!("acquire k{key} o{client} LEASE 70 BLOCK 40"),
                3 => format!("acquire k{key} o{client} READ LIMIT 2 LEASE 70 BLOCK 40"),
                4 => format!("renew k{key} o{client} LEASE 100"),
                5 => format!("release k{key} o{client} ALL"),
                6 => format!("acquire k{key} o{client} UPGRADE LEASE 90 BLOCK 60"),
                _ => format!("release k{key} o{client}"),
            };
            host.ask(client, &command);
        }
        if choose(3) == 0 {
            host.at(step * 3);
            told += host.turn().len();
        }
        replica.follow(&host);
        replica.at(step * 3);
        let locks = |host: &MapHost| {
            let world = host.world();
            let locks = world.keys.iter().map(|(at, slot)| (at.clone(), slot.value.clone()));
            locks.collect::<Vec<_>>()
        };
        assert_eq!(locks(&replica), locks(&host), "at step {step}");
    }
    assert!(told > 100, "only {told} were told");
}
