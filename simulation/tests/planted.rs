//! Each fault that is planted turns a run red, by a law that fits it, and the story of it is short.
#![allow(clippy::panic, clippy::unwrap_used, missing_docs, reason = "a test fails by panic")]

use rlock_simulation::fault::Fault;
use rlock_simulation::run::many;

/// A fault that is not found in so many steps is not found.
const STEPS: u64 = 1_500_000;
/// A story that is longer is not read.
const STORY_MAX: usize = 40;

#[track_caller]
fn found(fault: Fault, laws: &[&str]) {
    let story = match many(1, fault, STEPS) {
        Err(story) => story,
        Ok(_) => panic!("{fault:?} was not found"),
    };
    println!("## {fault:?}\n{story}");
    assert!(laws.contains(&story.broken.law), "{fault:?} was found by another law\n{story}");
    assert!(story.steps.len() <= STORY_MAX, "{fault:?}: {} steps\n{story}", story.steps.len());
}

const SAME: &str = "a replica that has every effect is the same";

#[test]
fn the_gate_is_left_open() {
    found(Fault::GateLeftOpen, &["the gate"]);
}

#[test]
fn a_session_is_kept_after_its_connection_ended() {
    found(Fault::SessionKept, &["a session ends with its connection"]);
}

#[test]
fn an_effect_is_lost() {
    found(Fault::EffectLost, &[SAME, "what was told stands"]);
}

#[test]
fn an_effect_is_replicated_twice() {
    found(Fault::EffectTwice, &["a replica tells what its primary told"]);
}

#[test]
fn a_deadline_is_renewed_on_a_replica() {
    found(Fault::RenewedOnReplica, &[SAME]);
}

#[test]
fn a_due_lock_is_forgotten() {
    let laws = [
        "nobody waits for a free lock",
        "a wait ends in time",
        "a session that is connected holds",
    ];
    found(Fault::AlarmForgotten, &laws);
}

#[test]
fn closing_is_forgotten() {
    found(Fault::ClosingForgotten, &["a session that is connected holds"]);
}

#[test]
fn an_undo_is_forgotten() {
    found(Fault::UndoForgotten, &["who did not hear holds nothing"]);
}

#[test]
fn a_time_to_live_is_forgotten() {
    let laws = [SAME, "a key lives as long as what was told of it", "a hold lasts as long as told"];
    found(Fault::TtlForgotten, &laws);
}

#[test]
fn tokens_are_not_noted() {
    found(Fault::TokensUnseen, &["tokens rise"]);
}

#[test]
fn a_lost_key_is_not_told() {
    let laws = ["a session that is connected holds", "nobody waits for a free lock"];
    found(Fault::KeyLossUntold, &laws);
}

#[test]
fn an_answer_is_forgotten() {
    found(
        Fault::AnswerForgotten,
        &["who is blocked is answered", "who did not hear holds nothing"],
    );
}
