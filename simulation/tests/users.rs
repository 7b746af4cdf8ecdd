//! The state machines of `clients/rust`, run against simulated servers; and each of their rules
//! broken.

use rlock_simulation::machine::Planted;
use rlock_simulation::trace::replay;
use rlock_simulation::users::{many, one, told, traces};

/// The number of steps of the short form, and the most until a planted fault is found.
const STEPS: u64 = 300_000;
const PLANTED_STEPS: u64 = 3_000_000;

#[test]
fn the_laws_hold() {
    let found = many(2026, Planted::Nothing, STEPS).unwrap_or_else(|story| panic!("{story}"));
    println!("{found}");
    let seen = [found.grants, found.outages, found.losses, found.restarts, found.promotions];
    assert!(seen.iter().chain(&[found.forks, found.closes]).all(|count| *count > 0), "{found}");
}

/// This happens seconds later, after a second failover: the undo went to the primary of that time.
#[test]
fn a_server_that_is_the_primary_again_reads_an_old_request() {
    one(3089, Planted::Nothing, false).unwrap_or_else(|story| panic!("{story}"));
}

#[test]
fn five_thousand_traces_are_replayed() {
    let text = traces(1, Planted::Nothing, 5000);
    assert_eq!(replay(&text), Ok(5000));
}

#[test]
fn the_traces_in_the_repository_are_those_of_the_machine() {
    let text = include_str!("../../clients/traces/golden.txt");
    assert!(replay(text).unwrap() >= 24);
}

/// A broken rule makes the simulation fail by one of these laws, and its traces as well.
#[track_caller]
fn found(planted: Planted, laws: &[&str], has_traces: bool) {
    let Err(story) = many(1, planted, PLANTED_STEPS) else { panic!("{planted:?} was not found") };
    println!("## {planted:?}\n{story}");
    assert!(laws.contains(&story.law), "{planted:?} was found by another law: {story}");
    if has_traces {
        let answer = replay(&traces(1, planted, 2000));
        println!("{}", answer.as_ref().err().map_or("", String::as_str));
        assert!(answer.is_err(), "{planted:?} is in no trace");
    }
}

const ONE: &str = "no two owners before a lost signal";
const NOTHING: &str = "what was abandoned leaves nothing";

#[test]
fn a_seat_is_left_too_early() {
    found(Planted::SeatLeft, &[ONE, NOTHING], true);
}

#[test]
fn what_is_undone_is_not_named() {
    found(Planted::UndoneUnnamed, &[ONE, NOTHING], true);
}

#[test]
fn what_was_never_answered_is_looked_for_once() {
    found(Planted::UndoneOnce, &[NOTHING], true);
}

#[test]
fn a_forked_process_keeps_its_names() {
    found(Planted::NamesKept, &[ONE, NOTHING], false);
}

#[test]
fn a_silence_condemns_nothing() {
    found(Planted::SilenceTrusted, &["a silence is believed"], false);
}

#[test]
fn a_request_outlasts_the_patience() {
    found(Planted::PatienceIgnored, &["a call returns by its patience"], true);
}

#[test]
fn a_limit_for_outages_is_forgotten() {
    found(Planted::OutageForgotten, &["a limit for outages ends a wait"], true);
}

#[test]
fn an_outage_counts_from_the_call() {
    found(Planted::OutageFromCall, &["a wait ends no sooner than it is limited"], true);
}

#[test]
fn a_wait_is_asked_once() {
    found(Planted::WaitUnrepeated, &["a wait for a free lock ends"], true);
}

#[test]
fn a_wait_that_ended_is_not_undone() {
    found(Planted::DoubtForgotten, &[NOTHING], true);
}

#[test]
fn the_message_for_an_earlier_request_is_believed() {
    found(Planted::OldMessageBelieved, &[ONE, NOTHING], false);
}

#[test]
fn what_was_never_sent_is_undone() {
    found(Planted::UnsentUndone, &["what was never sent is not undone"], true);
}

#[test]
fn dials_do_not_rest() {
    found(Planted::DialsUnrested, &["a server that is away is left alone"], false);
}

#[test]
fn a_wait_outlives_its_client() {
    found(Planted::CloseIgnored, &["closed is closed"], true);
}

#[test]
fn a_grant_is_forgotten() {
    found(Planted::GrantForgotten, &[NOTHING], true);
}

#[test]
fn a_lease_counts_from_the_reply() {
    found(Planted::LeaseFromReply, &[ONE], true);
}

#[test]
fn a_break_is_ignored() {
    found(Planted::BreakBelieved, &[ONE], true);
}

/// Prints the story of a seed, to find out what broke a law (`RLOCK_SEED`).
#[test]
fn a_story_is_told() {
    let seed = std::env::var("RLOCK_SEED").map_or(1, |text| text.parse().unwrap());
    let story = told(seed, Planted::Nothing).story;
    story.iter().for_each(|line| println!("{line}"));
    assert!(!story.is_empty());
}
