//! Several locks in one step: all or none, with one token, as one unit in the replication stream.

use crate::support::MapHost;
use rlock_engine::events;

// --- M7, M30: all or none, and in which order ---------------------------------------------------

#[test]
fn all_locks_are_replicated_before_the_first_is_published() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "macquire 2 b a ann"), "#1");
    let log = host.take_log();
    assert_eq!(
        log,
        [
            "replicated apply",
            "seen: decided a 1 changes 1 events 0 pending: #1 for 30000",
            "seen: decided b 1 changes 1 events 0 pending: #1 for 30000",
            "seen: granted several",
            "set a",
            "set b",
            "signalled a",
            "published rlock.acquired a",
            "signalled b",
            "published rlock.acquired b",
            "seen: acquired #1 for 30000",
        ],
        "in key order, with one token"
    );
    let words = host.world().stream[0].words.clone();
    assert_eq!(words[..3], [&b"RLOCK.APPLY"[..], b"a", b"b"]);
    let replica = MapHost::replica();
    replica.follow(&host);
    for key in ["a", "b"] {
        assert_eq!(host.holds(key), "ann write depth=1 until=30000");
        assert_eq!(replica.lock(key), host.lock(key));
    }
}

/// Law: a replica has what its primary has, whatever another module does when it is notified of a
/// key.
#[test]
fn what_another_module_does_when_a_lock_begins_follows_all_effects_of_the_step() {
    let (host, replica) = (MapHost::primary(), MapHost::replica());
    host.ask(1, "acquire b ann READ");
    host.ask(1, "acquire b bob READ");
    host.world().on_new = Some(|host, key| {
        if key == b"c" {
            for key in ["a", "b"] {
                host.remove(key);
                host.write(vec![b"DEL".to_vec(), key.as_bytes().to_vec()]);
            }
        }
    });
    assert_eq!(host.ask(1, "macquire 4 a b c d ann READ"), "#3");
    for key in ["a", "b"] {
        assert_eq!(host.holds(key), "no key", "{key} is deleted");
    }
    replica.follow(&host);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(replica.holds(key), host.holds(key), "{key}");
    }
}

#[test]
fn a_step_at_one_of_the_keys_is_replicated_as_one_at_a_single_key() {
    let (host, other) = (MapHost::primary(), MapHost::primary());
    other.ask(1, "acquire a ann");
    host.ask(1, "macquire 1 a ann");
    assert_eq!(host.world().stream, other.world().stream);
    host.ask(1, "acquire b ann");
    host.world().stream.clear();
    assert_eq!(host.ask(1, "mrelease 3 a b c bob"), "0");
    assert_eq!(host.world().stream, [], "nothing changed");
    host.ask(1, "release a ann");
    assert_eq!(host.ask(1, "mrelease 3 a b c ann"), "1");
    let words = host.world().stream.last().unwrap().words.clone();
    assert_eq!((words.len(), words[1].as_slice()), (3, &b"b"[..]));
}

/// The second effect at a key belongs to another command: a command names each key once.
#[test]
fn what_had_expired_at_the_keys_is_replicated_before_they_are_entered() {
    let (host, replica) = (MapHost::primary(), MapHost::replica());
    for key in ["a", "b"] {
        host.ask(1, &format!("acquire {key} bob READ LEASE 100"));
        host.ask(1, &format!("acquire {key} cy READ"));
        host.ask(2, &format!("acquire {key} dan QUEUE 50"));
    }
    host.at(100);
    host.world().stream.iter().for_each(|one| {
        replica.replay(one);
    });
    host.world().stream.clear();
    assert_eq!(host.ask(3, "macquire 3 c b a ann READ"), "#5");
    let stream = host.world().stream.clone();
    let keys = |place: usize| stream[place].words[1..].len() - 1;
    assert_eq!((stream.len(), keys(0), keys(1)), (2, 2, 3), "{stream:?}");
    for one in &stream {
        assert_eq!(replica.replay(one), "OK");
    }
    for key in ["a", "b", "c"] {
        assert_eq!(replica.holds(key), host.holds(key));
    }
}

#[test]
fn nothing_changes_if_one_lock_is_held_by_another_owner() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob LEASE 500");
    host.take_log();
    assert_eq!(host.ask(2, "macquire 3 a b c ann"), "nil");
    assert_eq!(host.ask(2, "macquire 3 a b c ann WITHTTL"), "*2 nil 500");
    assert_eq!(host.did(), [""; 0]);
    assert_eq!(host.holds("a"), "no key");
    assert_eq!(host.holds("c"), "no key");
    host.ask(3, "acquire d cy LEASE 900");
    host.ask(3, "acquire e cy LEASE 700");
    assert_eq!(host.ask(2, "macquire 4 a b d e ann WITHTTL"), "*2 nil 900", "the longest");
    host.ask(3, "acquire c cy SESSION");
    assert_eq!(host.ask(2, "macquire 4 b c d e ann WITHTTL"), "*2 nil -1", "one is not known");
}

#[test]
fn each_key_has_its_own_mode_and_limit() {
    let host = MapHost::primary();
    host.ask(1, "acquire pool x LIMIT 2");
    host.ask(1, "acquire folder x READ");
    assert_eq!(host.ask(2, "macquire 3 file folder pool ann MODES WRITE READ 2"), "#3");
    assert_eq!(host.holds("folder"), "x read depth=1 until=30000, ann read depth=1 until=30000");
    assert_eq!(host.ask(3, "macquire 2 pool other bob MODES 2 WRITE"), "nil", "two permits");
    assert_eq!(host.ask(3, "macquire 2 pool other bob MODES 3 WRITE"), "#6");
    assert_eq!(host.ask(4, "macquire 2 folder x cy READ"), "#8", "READ for all");
    assert_eq!(host.ask(4, "macquire 2 folder y dan"), "nil", "WRITE for all");
}

// --- M8, M9: sending it again -------------------------------------------------------------------

#[test]
fn covered_keys_get_no_level_and_the_reply_is_the_newest_token() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "macquire 2 a b ann LEASE 1000"), "#1");
    host.take_log();
    host.at(400);
    assert_eq!(host.ask(1, "macquire 2 a b ann LEASE 1000"), "#1", "the same token");
    assert_eq!(host.did()[0], "replicated apply");
    assert_eq!(host.world().stream.last().unwrap().apart().len(), 2, "both are renewed");
    assert_eq!(host.holds("a"), "ann write depth=1 until=1400");
    assert_eq!(host.ask(1, "macquire 2 a b ann LEASE 100"), "#1");
    assert_eq!(host.holds("a"), "ann write depth=1 until=1400", "never shorter");
    assert_eq!(host.ask(1, "macquire 2 b c ann LEASE 5000 WITHTTL"), "*2 #3 5000", "c is new");
    assert_eq!(host.holds("b"), "ann write depth=1 until=5400");
    assert!(host.token(3) > host.token(1), "one number fences them all");
    assert_eq!(host.ask(1, "macquire 3 a b c ann LEASE 1 WITHTTL"), "*2 #3 1000", "the earliest");
}

#[test]
fn read_beside_ones_own_write_is_entered() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann");
    host.ask(2, "acquire a bob BLOCK 0");
    assert_eq!(host.ask(1, "macquire 2 a b ann READ"), "#2");
    assert!(host.holds("a").contains("ann read depth=1"), "{}", host.holds("a"));
}

// --- M6, M10: errors ----------------------------------------------------------------------------

#[test]
fn write_on_ones_own_read_is_a_deadlock_and_changes_nothing() {
    let host = MapHost::primary();
    host.ask(1, "acquire b ann READ");
    host.ask(2, "acquire a bob");
    host.take_log();
    let said = host.ask(1, "macquire 2 a b ann");
    assert!(said.starts_with("-DEADLOCK owner 'ann' holds READ of 'b'"), "{said}");
    assert_eq!(host.did(), [""; 0]);
}

#[test]
fn a_key_of_another_type_is_told_before_a_deadlock() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann READ");
    host.put_other("b");
    host.take_log();
    for line in ["macquire 2 a b ann", "mrelease 2 a b ann", "mrenew 2 a b ann"] {
        assert!(host.ask(1, line).starts_with("-WRONGTYPE"), "{line}");
    }
    assert_eq!(host.did(), [""; 0]);
    assert_eq!(host.holds("a"), "ann read depth=1 until=30000");
}

#[test]
fn sessions_of_all_keys_count_before_any_begins() {
    let host = MapHost::primary();
    host.world().bounds.max_sessions = 3;
    host.ask(1, "acquire a ann SESSION");
    host.take_log();
    let said = host.ask(1, "macquire 4 a b c d ann SESSION");
    assert!(said.starts_with("-TOOMANY too many sessions"), "{said}");
    assert_eq!(host.did(), [""; 0], "no new hold");
    assert_eq!(host.ask(1, "macquire 3 a b c ann SESSION"), "#2", "a is tied already");
    host.close(1);
    host.turn();
    for key in ["a", "b", "c"] {
        assert_eq!(host.holds(key), "no key", "{key} ended with the connection");
    }
}

/// A hold that has ended does not count for `rlock.max-sessions`, however its key is requested.
#[test]
fn a_session_that_has_ended_does_not_count() {
    for request in ["acquire a", "macquire 1 a", "macquire 2 a b"] {
        for words in ["", " BLOCK 1000"] {
            let host = MapHost::primary();
            host.world().bounds.max_sessions = 2;
            host.ask(1, "macquire 2 a b cy READ");
            host.ask(2, "macquire 2 a b bob READ LEASE 1000 SESSION");
            host.at(1000);
            let line = format!("{request} ann READ SESSION{words}");
            let reply = host.ask(3, &line);
            assert!(reply.starts_with('#'), "{line}: {reply}");
        }
    }
}

#[test]
fn a_replica_refuses() {
    let host = MapHost::replica();
    for line in ["macquire 1 a ann", "mrelease 1 a ann", "mrenew 1 a ann"] {
        assert!(host.ask(1, line).starts_with("-READONLY"), "{line}");
    }
}

// --- M11: who is in the way ---------------------------------------------------------------------

#[test]
fn waiters_turns_and_ones_own_ticket_are_in_the_way() {
    let host = MapHost::primary();
    host.ask(1, "acquire b ann READ");
    host.ask(2, "acquire b bob BLOCK 0");
    assert_eq!(host.ask(3, "macquire 2 a b cy READ WITHTTL"), "*2 nil -1", "behind bob");
    assert_eq!(host.ask(1, "macquire 2 a b ann READ"), "#2", "covered: re-entry passes waiters");
    host.ask(4, "acquire c dan");
    host.ask(5, "acquire c cy QUEUE 1000");
    host.ask(4, "release c dan");
    assert_eq!(host.ask(5, "macquire 2 c d cy"), "nil", "its ticket is no turn for several");
    assert_eq!(host.ask(5, "acquire c cy"), "#4");
}

#[test]
fn what_has_expired_is_in_nobodys_way() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob LEASE 100");
    host.ask(1, "acquire b bob LEASE 100");
    host.ask(2, "acquire b cy BLOCK 0");
    host.at(100);
    assert_eq!(host.ask(3, "macquire 2 a b ann WITHTTL"), "*2 nil 30000", "cy has b by now");
    assert_eq!(host.turn(), ["2: #3"]);
    assert_eq!(host.holds("a"), "no key", "bob's hold ended, ann's did not begin");
    assert_eq!(host.ask(3, "macquire 2 a c ann"), "#4");
}

#[test]
fn nothing_is_granted_in_the_grace() {
    let host = MapHost::replica();
    host.world().bounds.grace_ms = 1000;
    events::set_role(&host, true);
    host.at(300);
    assert_eq!(host.ask(1, "macquire 2 a b ann WITHTTL"), "*2 nil 700");
    let primary = MapHost::primary();
    primary.ask(1, "macquire 2 a b ann");
    host.world().is_from_primary = true;
    host.follow(&primary);
    assert_eq!(host.ask(1, "macquire 2 a b ann WITHTTL"), "*2 nil 700", "covered ones as well");
    assert_eq!(host.ask(1, "mrelease 2 a b ann"), "2");
    host.at(1000);
    assert_eq!(host.ask(1, "macquire 2 a b ann"), "#1");
}

// --- M32, M33: releasing and renewing -----------------------------------------------------------

#[test]
fn a_release_ends_every_hold_of_the_owner_and_says_how_many() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann");
    host.ask(1, "acquire a ann");
    host.ask(1, "acquire a ann READ");
    host.ask(1, "acquire b ann READ");
    host.ask(2, "acquire b bob READ");
    host.take_log();
    assert_eq!(host.ask(1, "mrelease 3 c b a ann"), "3", "both modes of a, at any depth");
    assert_eq!(
        host.did(),
        [
            "deleted a",
            "replicated apply",
            "signalled a",
            "published rlock.released a",
            "published rlock.released a",
            "signalled b",
            "published rlock.released b",
        ]
    );
    assert_eq!(host.ask(1, "mrelease 3 c b a ann"), "0", "sending it again is safe");
    assert_eq!(host.holds("b"), "bob read depth=1 until=30000");
}

#[test]
fn a_release_with_a_token_ends_what_that_grant_began() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann");
    assert_eq!(host.ask(1, "macquire 2 a b ann"), "#2");
    assert_eq!(host.ask(1, "mrelease 2 a b ann TOKEN #2"), "1");
    assert_eq!(host.holds("a"), "ann write depth=1 until=30000", "an outer scope's");
    assert_eq!(host.holds("b"), "no key");
}

#[test]
fn a_release_serves_the_queues_of_all_keys() {
    let host = MapHost::primary();
    host.ask(1, "macquire 2 a b ann");
    host.ask(2, "acquire b bob BLOCK 0");
    host.ask(3, "acquire a cy BLOCK 0");
    host.take_log();
    assert_eq!(host.ask(1, "mrelease 2 b a ann"), "2");
    let did = host.did();
    let last_written = did.iter().rposition(|line| line.starts_with("replicated")).unwrap();
    let first_told = did.iter().position(|line| line.starts_with("published")).unwrap();
    assert!(last_written < first_told, "{did:?}");
    assert_eq!(host.turn(), ["2: #4", "3: #3"], "queues are served in key order");
}

#[test]
fn a_renewal_extends_all_holds_or_none() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "macquire 2 a b ann LEASE 1000"), "#1");
    host.at(500);
    host.take_log();
    let said = host.ask(1, "mrenew 3 b c a ann LEASE 9000");
    assert!(said.starts_with("-NOTHELD owner 'ann' does not hold 'c'"), "{said}");
    let said = host.ask(1, "mrenew 3 d b c ann");
    assert!(said.contains("does not hold 'd'"), "the first of the request: {said}");
    assert_eq!(host.did(), [""; 0]);
    assert_eq!(host.ask(1, "mrenew 2 b a ann LEASE 9000"), "1");
    assert_eq!(host.holds("a"), "ann write depth=1 until=9500");
    assert_eq!(host.holds("b"), "ann write depth=1 until=9500");
    assert_eq!(host.ask(1, "mrenew 2 a b ann TOKEN #1 LEASE 1"), "1");
    assert!(host.ask(1, "mrenew 2 a b ann TOKEN 7").contains("does not hold 'a' with token 7"));
    host.at(9500);
    assert!(host.ask(1, "mrenew 2 a b ann").starts_with("-NOTHELD"), "both are over");
}
