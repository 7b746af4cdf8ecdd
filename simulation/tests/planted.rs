//! Each planted fault makes a run fail, by a law that fits it, with a short story.

use rlock_simulation::fault::Fault;
use rlock_simulation::run::{WORLD_STEPS, many};
use rlock_simulation::world::Setting;

/// Within this many steps, each fault must be found.
const STEPS: u64 = 8_000_000;
/// Nobody reads a longer story.
const STORY_MAX: usize = 40;

#[track_caller]
fn found(fault: Fault, laws: &[&str]) {
    found_beside(fault, laws, &[]);
}

/// The same, although other laws detect it as well.
#[track_caller]
fn found_beside(fault: Fault, laws: &[&str], others: &[&str]) {
    found_in(fault, laws, others, |_| true);
}

/// The same in suitable worlds: replicas that acknowledge make a story long.
#[track_caller]
fn found_in(fault: Fault, laws: &[&str], others: &[&str], is_fit: fn(&Setting) -> bool) {
    let mut seed: u64 = 1;
    let story = loop {
        let steps = STEPS.saturating_sub(seed.saturating_mul(WORLD_STEPS));
        match many(seed, fault, steps) {
            // One of many stories is short.
            Err(story)
                if others.contains(&story.broken.law)
                    || !is_fit(&story.setting)
                    || story.steps.len() > STORY_MAX =>
            {
                seed = story.seed.saturating_add(1);
            }
            Err(story) => break story,
            Ok(_) => panic!("{fault:?} was not found"),
        }
    };
    println!("## {fault:?}\n{story}");
    assert!(laws.contains(&story.broken.law), "{fault:?} was found by another law\n{story}");
    assert!(story.steps.len() <= STORY_MAX, "{fault:?}: {} steps\n{story}", story.steps.len());
}

const SAME_TOLD: &str = "a replica tells what its primary told";
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
    let laws = [SAME, SAME_TOLD, "what was told stands", BEFORE_ACKS[0]];
    found(Fault::EffectLost, &laws);
}

#[test]
fn an_effect_is_replicated_twice() {
    // Swapping a database twice does not give the same, either.
    found_beside(Fault::EffectTwice, &[SAME_TOLD], &[SAME]);
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
        "who did not hear holds nothing",
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

/// A caller that reads its token and closes at once relied on it all the same.
#[test]
fn a_grant_that_was_heard_is_forgotten() {
    let laws =
        ["what was told stands", "a hold ends by its owner, its lease, its session or an operator"];
    // A group may also miss its grant, because the fault keeps a hold that should have ended.
    found_beside(Fault::HeardForgotten, &laws, &["who has reached all of the locks is granted"]);
}

#[test]
fn a_time_to_live_is_forgotten() {
    let laws = [SAME, "a key lives as long as what was told of it", "a hold lasts as long as told"];
    found(Fault::TtlForgotten, &laws);
}

#[test]
fn tokens_are_not_noted() {
    found(Fault::Engine(rlock_engine::PlantedFault::TokensUnseen), &["tokens rise"]);
}

#[test]
fn a_lost_key_is_not_told() {
    let laws = ["a session that is connected holds", "nobody waits for a free lock"];
    found_beside(Fault::KeyLossUntold, &laws, &["what is told stands"]);
}

#[test]
fn a_value_that_arrives_is_not_told() {
    let laws = ["nobody waits where another type stands", "nobody waits for what it holds"];
    found(Fault::ArrivalUntold, &laws);
}

#[test]
fn an_answer_is_forgotten() {
    let laws =
        ["who is blocked is answered", "who did not hear holds nothing", "a wait ends in time"];
    let others = ["nobody who waits is passed", "nobody waits where another type stands"];
    found_beside(Fault::AnswerForgotten, &laws, &others);
}

const BEFORE_ACKS: [&str; 2] =
    ["nobody is told before replicas acknowledged", "what is told is on as many copies"];

#[test]
fn an_offset_is_noted_before_the_effect_is_written() {
    found(Fault::OffsetNotedEarly, &BEFORE_ACKS);
}

#[test]
fn a_replica_counts_that_is_not_there() {
    found(Fault::OfflineCounted, &["too few replicas are said at once", BEFORE_ACKS[0]]);
}

#[test]
fn a_take_back_is_forgotten() {
    found(
        Fault::Engine(rlock_engine::PlantedFault::RevocationForgotten),
        &["who did not hear holds nothing"],
    );
}

#[test]
fn grants_are_told_at_once() {
    let laws = BEFORE_ACKS;
    found(Fault::ToldAtOnce, &laws);
}

#[test]
fn a_session_is_kept_by_a_deadline_that_nobody_acknowledged() {
    let laws = ["a session lasts as acknowledged", "no session runs overdue"];
    let ends = "a hold ends by its owner, its lease, its session or an operator";
    let others = [ends, BEFORE_ACKS[0], BEFORE_ACKS[1]];
    found_beside(Fault::SessionUnacknowledged, &laws, &others);
}

#[test]
fn an_overdue_session_runs() {
    let ends = "a hold ends by its owner, its lease, its session or an operator";
    let others = [ends, BEFORE_ACKS[0], BEFORE_ACKS[1]];
    found_beside(Fault::OverdueRuns, &["no session runs overdue"], &others);
}

#[test]
fn the_grace_is_ignored() {
    found(Fault::GraceIgnored, &["the grace outlasts every lease"]);
}

#[test]
fn an_observer_is_not_told_what_it_waits_for() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::ObserversForgotten);
    let laws = ["an observer misses nothing that lasts"];
    found_in(fault, &laws, &[], |setting| setting.nodes == 1);
}

#[test]
fn a_grant_of_several_locks_is_replicated_key_by_key() {
    found(Fault::UnitSplit, &["nobody has a part of a grant"]);
}

#[test]
fn a_lock_stays_reserved_for_who_is_gone() {
    // Nobody learns of its grant, either.
    found_beside(Fault::DepartureUntold, &["who has a place waits"], &[UNHEARD]);
}

#[test]
fn several_locks_are_granted_without_one_of_them() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::LockLeftOut);
    found_beside(
        fault,
        &["a grant holds all of its locks"],
        &["a deadline is no earlier than told"],
    );
}

#[test]
fn several_holds_are_renewed_but_for_one_of_them() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::RenewalLeftOut);
    found(fault, &["a deadline is no earlier than told"]);
}

#[test]
fn who_waits_for_several_locks_does_not_move_on() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::GroupsForgotten);
    let laws =
        ["who waits for several locks stands at one", GRANTED, "nobody waits for what it holds"];
    found_beside(fault, &laws, &["the indexes agree"]);
}

#[test]
fn several_locks_are_told_before_replicas_acknowledged_them() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::SeveralToldAtOnce);
    found(fault, &BEFORE_ACKS);
}

#[test]
fn a_grant_of_several_locks_is_revoked_but_for_one_of_them() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::PartNotRevoked);
    found_beside(fault, &[UNHEARD], &["the indexes agree"]);
}

#[test]
fn t10_a_message_leaves_in_the_midst_of_a_script() {
    found(Fault::MessageInside, &["a message leaves after what is longer"]);
}

#[test]
fn t15_a_message_leaves_before_the_events_of_its_step() {
    found(Fault::EventsForgotten, &["a message comes after the events"]);
}

#[test]
fn t17_a_wait_for_a_message_is_replicated() {
    found(Fault::WaitReplicated, &["a wait is not replicated"]);
}

#[test]
fn t5_who_does_not_listen_is_granted() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::ListenersNotAsked);
    let laws = ["nothing is granted to who does not listen", "what nobody hears is not sent"];
    found(fault, &laws);
}

#[test]
fn t12_the_right_to_the_channel_is_not_asked_for_again() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::ChannelRightsForgotten);
    let laws = ["nothing is granted to who does not listen", "what nobody hears is not sent"];
    found(fault, &laws);
}

#[test]
fn t3_a_message_is_sent_twice() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::ToldTwice);
    found(fault, &["exactly one message"]);
}

#[test]
fn t6_a_grant_is_revoked_though_its_message_has_left() {
    let fault = Fault::Engine(rlock_engine::PlantedFault::MessageUnheard);
    let laws = [
        "what was told stands",
        "what was told is not taken back",
        "a session that is connected holds",
        "a hold ends by its owner, its lease, its session or an operator",
    ];
    found(fault, &laws);
}

#[test]
fn t7_who_asks_again_waits_beside_itself() {
    found(Fault::UserUnknown, &["who asks again takes its place"]);
}

#[test]
fn t13_a_request_for_a_session_outlives_its_connection() {
    found_beside(Fault::AskerKept, &["a request for a session ends with its connection"], &TIES);
}

#[test]
fn t9_a_wait_for_a_message_has_no_bound() {
    found(Fault::TellUnbound, &["a wait for a message has an end", "a wait ends in time"]);
}

#[test]
fn t20_more_wait_for_messages_than_may() {
    found(Fault::TellsUncounted, &["no more wait for messages than may"]);
}

#[test]
fn t4_t8_t18_a_message_or_a_count_is_left_out() {
    found(Fault::MessageLeftOut, &["messages are counted", "exactly one message"]);
}

const TIES: [&str; 2] = ["a session ends with its connection", "who did not hear holds nothing"];
const UNHEARD: &str = "who did not hear holds nothing";
const GRANTED: &str = "who has reached all of the locks is granted";
