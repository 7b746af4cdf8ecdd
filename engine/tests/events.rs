//! What the server reports outside commands: the engine only takes notes and sets timers.

use crate::support::{MapHost, START_MS};
use rlock_core::{ClientId, Lock};
use rlock_engine::{Deferred, events};

fn held_with_a_waiter() -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob BLOCK 0");
    host.take_log();
    host
}

#[test]
fn a_connection_that_closes_ends_its_sessions_and_the_next_gets_the_lock() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.ask(2, "acquire k bob BLOCK 0");
    host.take_log();
    host.close(1);
    assert_eq!(host.take_log(), [""; 0], "nothing in the callback");
    assert_eq!(host.turn(), ["2: #2"]);
    let published = host.published();
    assert_eq!(published, ["rlock.disconnected k", "rlock.acquired k"]);
}

#[test]
fn a_connection_that_closes_ends_its_wait() {
    let host = held_with_a_waiter();
    host.world().waiting.clear();
    events::connection_ended(&host, ClientId::from(2));
    host.ask(1, "release k ann");
    assert_eq!((host.turn(), host.holds("k")), (vec![], "no key".into()));
}

#[test]
fn a_server_that_becomes_a_replica_closes_its_sessions_and_forgets_its_waits() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.ask(2, "acquire k bob BLOCK 0");
    host.take_log();
    events::set_role(&host, false);
    assert_eq!(host.did(), ["closes 1 (Callback)"]);
    assert!(host.ask(3, "release k ann").starts_with("-READONLY"));
    events::set_role(&host, true);
    host.at(30_000);
    host.turn();
    assert_eq!(host.ask(3, "acquire k cid"), "#2", "nobody is ahead");
}

#[test]
fn a_new_primary_issues_tokens_a_second_ahead_of_the_clock() {
    let host = MapHost::replica();
    host.at(500);
    events::set_role(&host, true);
    host.ask(1, "acquire k ann");
    assert_eq!(host.token(1), (START_MS + 1500) * 1000 + 1);
}

#[test]
fn a_flushed_database_grants_its_locks_to_those_who_wait() {
    let host = held_with_a_waiter();
    host.world().keys.clear();
    events::flushed(&host, Some(1));
    assert_eq!(host.turn(), [""; 0], "another database");
    events::flushed(&host, Some(0));
    assert!(host.has_deferred(Deferred::Sweep));
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn a_flush_of_all_databases_grants_the_locks_of_each() {
    let host = held_with_a_waiter();
    host.world().keys.clear();
    events::flushed(&host, None);
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn a_session_whose_lock_is_flushed_is_closed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.take_log();
    host.world().keys.clear();
    events::flushed(&host, None);
    let said = host.ask(1, "acquire l ann");
    assert!(said.starts_with("-ERR this connection lost a session"), "at once: {said}");
    host.turn();
    assert_eq!(host.did(), ["closes 1 (Sweep)"]);
    assert_eq!(host.take_deferred(), [], "that is done");
}

#[test]
fn swapped_databases_serve_those_who_wait_at_their_names() {
    let host = held_with_a_waiter();
    host.world().keys.clear();
    events::swapped(&host, 0, 3);
    assert!(host.has_deferred(Deferred::Sweep));
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn sessions_of_swapped_databases_are_closed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.take_log();
    events::swapped(&host, 0, 0);
    assert_eq!(host.did(), [""; 0], "nothing is swapped");
    events::swapped(&host, 3, 0);
    assert_eq!(host.did(), ["closes 1 (Callback)"]);
}

#[test]
fn nothing_is_done_while_the_server_loads_and_all_of_it_afterwards() {
    let host = held_with_a_waiter();
    events::loading_is(&host, false);
    host.world().keys.clear();
    assert_eq!(host.turn(), [""; 0]);
    events::loading_is(&host, true);
    assert!(host.has_deferred(Deferred::Sweep));
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn a_lock_that_its_session_held_is_loaded_again_and_nobody_is_closed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.take_log();
    events::flushed(&host, None);
    events::loading_is(&host, false);
    events::loading_is(&host, true);
    host.turn();
    assert_eq!(host.did(), [""; 0]);
}

#[test]
fn a_removed_lock_is_handed_to_the_next_in_line() {
    let host = held_with_a_waiter();
    host.remove("k");
    assert!(host.has_deferred(Deferred::Sweep));
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.published(), ["rlock.removed k", "rlock.acquired k"]);
}

#[test]
fn a_removed_lock_closes_its_session() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.take_log();
    host.remove("k");
    assert_eq!(host.did(), ["closes 1 (Removal)"]);
}

#[test]
fn the_engines_own_removals_are_no_news() {
    let host = MapHost::primary();
    events::key_left(&host, 0, b"k", &Lock::default());
    assert_eq!((host.take_deferred(), host.turn(), host.take_log()), (vec![], vec![], vec![]));
}

#[test]
fn the_cause_of_a_removal_belongs_to_the_key_that_was_removed_last() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.remove("k");
    events::key_lost(&host, 0, b"other", true);
    events::key_lost(&host, 1, b"k", true);
    host.take_log();
    host.turn();
    assert_eq!(host.published(), ["rlock.removed k"]);
}

#[test]
fn an_expired_key_is_published_as_expired() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.remove("k");
    events::key_lost(&host, 0, b"k", false);
    host.take_log();
    host.turn();
    assert_eq!(host.published(), ["rlock.expired k"]);
}
