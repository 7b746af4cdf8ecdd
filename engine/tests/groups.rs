//! Groups: their turns, their grant, and how their waits end.

use crate::support::MapHost;

// --- M13-M16: turns, one after the other --------------------------------------------------------

#[test]
fn a_group_reserves_what_is_free_and_stands_at_the_first_that_is_not() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "acquire stock bob"), "#1");
    assert_eq!(host.ask(2, "macquire 2 stock basket ann BLOCK 10000"), "");
    assert_eq!((host.line("basket"), host.line("stock")), ("ann!".into(), "ann".into()));
    assert_eq!(host.ask(3, "acquire basket cy"), "nil", "it is reserved");
    assert_eq!(host.ask(3, "holds basket ann"), "0");
    host.take_log();
    assert_eq!(host.ask(1, "release stock bob"), "0");
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.holds("basket"), "ann write depth=1 until=30000");
    assert_eq!(host.holds("stock"), "ann write depth=1 until=30000");
    assert_eq!(host.ask(2, "mrelease 2 stock basket ann TOKEN #2"), "2");
}

#[test]
fn a_group_has_no_place_behind_the_lock_where_it_stands() {
    let host = MapHost::primary();
    host.ask(1, "acquire basket bob");
    assert_eq!(host.ask(2, "macquire 2 stock basket ann BLOCK 10000"), "");
    assert_eq!((host.line("basket"), host.line("stock")), ("ann".into(), String::new()));
    assert_eq!(host.ask(3, "acquire stock cy"), "#2", "it is not reserved");
    assert_eq!(host.ask(1, "release basket bob"), "0");
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!((host.line("basket"), host.line("stock")), ("ann!".into(), "ann".into()));
    assert_eq!(host.ask(3, "release stock cy"), "0");
    assert_eq!(host.turn(), ["2: #3"]);
}

/// M30: a release and the grant that follows from it are replicated as one unit, before any reply.
#[test]
fn all_that_a_release_leads_to_is_replicated_before_anything_is_told() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 3 c b a ann BLOCK 0");
    host.take_log();
    host.ask(1, "release b bob");
    let log = host.take_log();
    let place = |what: &str| log.iter().position(|line| line.starts_with(what));
    let last = |what: &str| log.iter().rposition(|line| line.starts_with(what));
    assert!(last("replicated") < place("published"), "{log:#?}");
    assert!(last("published") < place("unblocked"), "{log:#?}");
    let told: Vec<&String> = log.iter().filter(|line| line.starts_with("published")).collect();
    assert_eq!(
        told,
        [
            "published rlock.released b",
            "published rlock.acquired a",
            "published rlock.acquired b",
            "published rlock.acquired c",
        ]
    );
}

/// M14: a group stands in the order of its arrival, not at the end.
#[test]
fn a_group_stands_before_those_who_arrived_after_it() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    host.ask(2, "acquire b cy");
    host.ask(3, "acquire b early BLOCK 0");
    host.ask(4, "macquire 2 a b ann BLOCK 0");
    host.ask(5, "acquire b late BLOCK 0");
    host.ask(6, "acquire b ticket QUEUE 60000");
    assert_eq!(host.line("b"), "early late ticket");
    host.ask(1, "release a bob");
    assert_eq!(host.line("b"), "early ann late ticket");
    host.ask(2, "release b cy");
    assert_eq!(host.turn(), ["3: #3"]);
    host.ask(3, "release b early");
    assert_eq!(host.turn(), ["4: #4"], "before those who came later");
}

/// M17: the reservation belongs to the group.
#[test]
fn a_single_request_of_the_same_owner_does_not_use_the_turn() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    assert_eq!(host.ask(3, "acquire a ann"), "nil");
    assert_eq!(host.ask(3, "acquire a ann QUEUE 1000"), "nil");
    assert_eq!(host.line("a"), "ann! ann");
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.line("a"), "", "the grant ends the ticket");
}

/// M13: a key counts as reached if the owner holds it. M16: that hold is not renewed meanwhile.
#[test]
fn a_hold_of_the_owner_covers_its_key() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann LEASE 5000");
    host.ask(2, "acquire b bob");
    host.ask(3, "macquire 2 a b ann BLOCK 0");
    assert_eq!((host.line("a"), host.line("b")), (String::new(), "ann".into()));
    assert_eq!(host.holds("a"), "ann write depth=1 until=5000");
    host.at(100);
    host.ask(2, "release b bob");
    assert_eq!(host.turn(), ["3: #3"]);
    assert_eq!(host.holds("a"), "ann write depth=1 until=30100");
}

// --- M18: it goes back ---------------------------------------------------------------------------

#[test]
fn a_group_whose_cover_ends_stands_there_again_and_loses_nothing_if_its_turn_comes() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann");
    host.ask(2, "acquire c bob");
    host.ask(3, "macquire 3 a b c ann BLOCK 0");
    assert_eq!((host.line("b"), host.line("c")), ("ann!".into(), "ann".into()));
    host.ask(4, "acquire a dan BLOCK 0");
    host.ask(1, "release a ann");
    assert_eq!(host.line("a"), "ann! dan", "it arrived before dan");
    assert_eq!((host.line("b"), host.line("c")), ("ann!".into(), "ann".into()));
    host.ask(2, "release c bob");
    assert_eq!(host.turn(), ["3: #3"]);
}

#[test]
fn a_group_that_goes_back_gives_up_its_turns_behind() {
    let host = MapHost::primary();
    host.ask(1, "acquire c bob");
    host.ask(5, "acquire a x READ LEASE 60000");
    host.ask(2, "macquire 3 a b c ann MODES 3 WRITE WRITE BLOCK 0");
    assert_eq!(host.line("a"), "ann!");
    host.ask(3, "acquire b cy BLOCK 0");
    assert_eq!(host.line("b"), "ann! cy");
    assert_eq!(host.ask(8, "acquire other z"), "#3");
    host.put_lock("a", host.lock("other"));
    let told = [host.turn(), host.turn()].concat();
    assert_eq!(told, ["3: #4"], "b is free for the next");
    assert_eq!((host.line("a"), host.line("c")), ("ann".into(), String::new()));
    host.ask(9, "force a");
    host.ask(3, "release b cy");
    host.ask(1, "release c bob");
    assert_eq!(host.turn(), ["2: #5"]);
}

// --- M19: the end of a wait ----------------------------------------------------------------------

#[test]
fn the_time_of_a_group_ends_all_of_it_and_serves_those_behind() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob LEASE 5000");
    host.ask(2, "macquire 2 a b ann BLOCK 1000 WITHTTL");
    host.ask(3, "acquire a cy BLOCK 0");
    host.at(999);
    assert_eq!(host.turn(), [""; 0]);
    host.at(1000);
    let mut told = host.turn();
    told.extend(host.turn());
    assert_eq!(told, ["2: *2 nil 4000", "3: #2"]);
    assert_eq!(host.line("b"), "");
}

#[test]
fn a_group_whose_time_has_passed_is_never_granted() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob LEASE 5000");
    host.ask(2, "macquire 2 a b ann BLOCK 1000");
    host.at(1000);
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), ["2: nil"]);
    assert_eq!((host.holds("a"), host.holds("b")), ("no key".into(), "no key".into()));
}

/// Its wait has timed out when it reaches its next lock, or all of them; before the next sweep, the
/// clock is set back.
#[test]
fn a_group_whose_time_has_passed_ends_at_once_for_the_clock_may_go_back() {
    for released in ["a", "b"] {
        let host = MapHost::primary();
        host.ask(1, &format!("acquire {released} bob LEASE 5000"));
        host.ask(2, "macquire 2 a b ann BLOCK 1000");
        host.at(1000);
        host.ask(1, &format!("release {released} bob"));
        host.at(900);
        assert_eq!(host.turn(), ["2: nil"], "{released}");
        assert_eq!(host.line("a") + &host.line("b"), "", "{released}");
    }
}

#[test]
fn cancel_at_any_key_ends_a_group_and_counts_it_once() {
    for key in ["a", "b", "c"] {
        let host = MapHost::primary();
        host.ask(1, "acquire b bob");
        host.ask(2, "macquire 3 a b c ann BLOCK 0");
        host.ask(3, "acquire a cy BLOCK 0");
        assert_eq!(host.ask(4, &format!("cancel {key} ann")), "1");
        assert_eq!(host.deliver_all(), ["2: nil", "3: #2"], "{key}");
        assert_eq!(host.ask(4, &format!("cancel {key} ann")), "0");
    }
}

#[test]
fn a_closed_connection_ends_a_group() {
    let host = MapHost::primary();
    host.ask(1, "acquire c bob");
    host.ask(2, "macquire 3 a b c ann BLOCK 0");
    host.ask(3, "acquire a cy BLOCK 0");
    host.ask(4, "acquire b di BLOCK 0");
    host.close(2);
    assert_eq!(host.turn(), ["3: #2", "4: #3"]);
    assert_eq!(host.line("c"), "");
}

/// Part one, section 6: an unheard grant is revoked as a whole.
#[test]
fn a_grant_whose_connection_closes_before_its_reply_is_taken_back_everywhere() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 3 a b c ann BLOCK 0");
    host.ask(1, "release b bob");
    assert_eq!(host.holds("a"), "ann write depth=1 until=30000");
    host.close(2);
    host.turn();
    for key in ["a", "b", "c"] {
        assert_eq!(host.holds(key), "no key");
    }
}

/// A replica has all of the holds of a grant or none, also when the grant is revoked.
#[test]
fn a_grant_that_nobody_heard_of_is_revoked_in_one_unit() {
    let host = MapHost::primary();
    host.ask(1, "acquire c bob");
    host.ask(2, "macquire 3 a b c ann BLOCK 0");
    host.ask(1, "release c bob");
    host.close(2);
    // Another command at one of its locks, before the sweep.
    host.ask(3, "acquire a cy BLOCK 0");
    host.ask(4, "acquire b dan QUEUE 60000");
    let left = ["a", "b", "c"].map(|key| host.holds(key) == "ann write depth=1 until=30000");
    assert!(left == [true; 3] || left == [false; 3], "{left:?}");
    let told = host.turn();
    assert!(told.len() == 1 && told[0].starts_with("3: #"), "{told:?}");
    assert_eq!(host.holds("c"), "no key");
}

/// The time for a portion may end between any two tasks, but not within one.
#[test]
fn many_grants_that_nobody_heard_of_are_revoked_one_unit_each() {
    let host = MapHost::primary();
    host.ask(1, "acquire z bob");
    for client in 10..20 {
        assert_eq!(
            host.ask(
                client,
                &format!(
                    "macquire 3 a{client} m{client} z o{client} MODES \
                                              WRITE WRITE READ BLOCK 0"
                )
            ),
            ""
        );
    }
    host.ask(1, "release z bob");
    (10..20).for_each(|client| host.close(client));
    host.world().tick = std::time::Duration::from_millis(10);
    let mut revoked = 0;
    while revoked < 10 {
        host.turn();
        revoked = 0;
        for client in 10..20 {
            let left = ["a", "m"].map(|key| host.holds(&format!("{key}{client}")) != "no key");
            assert!(left == [true; 2] || left == [false; 2], "{client}: {left:?}");
            revoked += usize::from(left == [false; 2]);
        }
    }
    assert_eq!(host.holds("z"), "no key");
}

#[test]
fn a_user_that_lost_its_right_gets_nothing() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    host.ask(3, "acquire a cy BLOCK 0");
    host.world().users.insert(2, "gone".into());
    host.world().denied.insert("app".into());
    host.ask(1, "release b bob");
    let told = host.deliver_all();
    assert!(told[0].starts_with("2: -NOPERM"), "{told:?}");
    assert_eq!(host.holds("b"), "no key");
}

// --- M10, M20, M21, M24 --------------------------------------------------------------------------

#[test]
fn max_queue_counts_the_others_only() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "acquire b ann QUEUE 60000");
    assert_eq!(host.ask(2, "macquire 2 a b ann BLOCK 0 MAXQUEUE 1"), "", "its own ticket");
    assert_eq!(host.line("b"), "ann");
    assert_eq!(host.ask(3, "macquire 2 b c cy BLOCK 0 MAXQUEUE 1"), "nil");
    assert_eq!(host.ask(3, "macquire 2 b c cy BLOCK 0 MAXQUEUE 2"), "");
}

#[test]
fn a_refused_request_leaves_the_tickets_of_its_owner() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "acquire b x QUEUE 60000");
    host.ask(2, "acquire b ann QUEUE 60000");
    assert_eq!(host.ask(3, "macquire 2 a b ann BLOCK 0 MAXQUEUE 1"), "nil");
    assert_eq!(host.line("b"), "x ann");
    host.world().bounds.max_waiters = 0;
    assert!(host.ask(3, "macquire 2 a b ann BLOCK 0").starts_with("-TOOMANY"));
    assert_eq!(host.line("b"), "x ann");
}

#[test]
fn a_group_withdraws_its_owners_tickets_and_those_behind_them_come_first() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    host.ask(2, "acquire a ann QUEUE 60000");
    host.ask(3, "acquire a cy QUEUE 60000");
    host.ask(1, "release a bob");
    assert_eq!(host.line("a"), "ann! cy");
    assert_eq!(host.ask(2, "macquire 2 a b ann BLOCK 0"), "");
    assert_eq!(host.line("a"), "cy! ann");
}

#[test]
fn with_its_own_ticket_alone_in_the_way_it_enters_at_once() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    host.ask(2, "acquire a ann QUEUE 60000");
    host.ask(1, "release a bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann"), "nil", "without BLOCK it is in the way");
    assert_eq!(host.ask(2, "macquire 2 a b ann BLOCK 0"), "#2");
    assert_eq!(host.line("a"), "");
}
