//! Stories about several locks that once broke a law, each because of a mistake that has been
//! fixed: in the core, or in the law.

use crate::support::{TURN, all, plain, plays, plays_among};
use rlock_simulation::command::{Ask, Command, Patience};
use rlock_simulation::fault::Fault;
use rlock_simulation::run::{WORLD_STEPS, many};
use rlock_simulation::several::{AskAll, Keys, Want};
use rlock_simulation::step::Step;

/// A client sends this, and its server executes it.
fn asks(who: u8, command: Command) -> [Step; 2] {
    [Step::Send(who, command), Step::Read(who)]
}

/// The lost session is that of a connection that waits for the same lock, among others.
#[test]
fn who_loses_its_session_where_it_comes_to_stand_leaves_no_place() {
    let mut steps = vec![Step::Connect(1, 0)];
    let short = Ask { key: 1, reads: true, lease: 300, ..plain(1) };
    let session = AskAll { lease: 1050, session: true, ..all(1, 0b100) };
    steps.extend(asks(1, Command::Acquire(short)));
    steps.extend(asks(1, Command::AcquireAll(session)));
    steps.extend(asks(1, Command::AcquireAll(all(3, 0b111))));
    steps.extend([Step::Pass(2_970_000), TURN, TURN]);
    plays(1, &steps);
}

/// A hold that waited for acknowledgments expires: then nothing holds back a group that has reached
/// all of its locks.
#[test]
fn who_waits_for_acknowledgments_of_its_hold_is_granted_when_that_ends() {
    let reads = [Want::Read; 3];
    let mut steps = vec![Step::Deliver(1), TURN, Step::Deliver(1), Step::HearAck(1)];
    steps.push(Step::Connect(1, 0));
    let ticket =
        Ask { key: 2, reads: true, lease: 1001, patience: Patience::Queue(5), acks: 1, ..plain(1) };
    steps.extend(asks(1, Command::Acquire(ticket)));
    let patience = Patience::Block(2000);
    let group = AskAll { wants: reads, patience, ..all(1, 0b111) };
    steps.extend(asks(1, Command::AcquireAll(group)));
    steps.extend([Step::Pass(1_842_000), TURN, TURN, TURN]);
    plays(2, &steps);
}

/// The hold that covers one of the group's locks ends with its key while the gate is shut. Until
/// the lock is swept, a command that uses it must see that, too.
#[test]
fn who_was_covered_by_a_hold_that_ended_behind_the_gate_stands_in_line_again() {
    let mut steps: Vec<Step> = (0..3).map(|who| Step::Connect(who, 0)).collect();
    steps.extend(asks(0, Command::Acquire(Ask { key: 1, lease: 5000, ..plain(0) })));
    let short = Ask { key: 0, reads: true, lease: 3000, ..plain(3) };
    steps.extend(asks(2, Command::Acquire(short)));
    steps.extend(asks(1, Command::AcquireAll(all(1, 0b111))));
    let reads = AskAll { wants: [Want::Read; 3], ..all(3, 0b111) };
    steps.extend(asks(2, Command::AcquireAll(reads)));
    steps.extend([Step::MinReplicas(0, 1), Step::Pass(5_100_000), TURN, Step::MinReplicas(0, 0)]);
    let comes = AskAll { patience: Patience::Block(40), ..all(3, 0b101) };
    steps.extend(asks(0, Command::AcquireAll(comes)));
    plays(1, &steps);
}

/// A request for several locks takes over the session of one of them from another connection of its
/// owner, and departs before its reply.
#[test]
fn who_is_gone_before_its_reply_leaves_the_session_where_it_was() {
    let mut steps: Vec<Step> = (0..3).map(|who| Step::Connect(who, 0)).collect();
    let session = Ask { key: 0, lease: 2000, session: true, ..plain(0) };
    steps.extend(asks(0, Command::Acquire(session)));
    steps.extend(asks(1, Command::Acquire(Ask { key: 1, lease: 6000, ..plain(1) })));
    let both = AskAll { session: true, ..all(0, 0b011) };
    steps.extend(asks(2, Command::AcquireAll(both)));
    steps.push(Step::HangUp(2));
    steps.extend(asks(1, Command::Release(1, 1, true)));
    steps.extend([Step::Notice(2), TURN, TURN]);
    plays(1, &steps);
}

/// The hold that covers the group's first lock ends, and another owner is served there first: so
/// the group goes back, and gives up its place at the second lock. In the same loop iteration, it
/// reaches that lock again. A reader that arrived later was granted in between: it overtook nobody.
#[test]
fn who_goes_back_and_comes_again_was_not_passed_meanwhile() {
    let mut steps: Vec<Step> = (0..3).map(|who| Step::Connect(who, 0)).collect();
    let session = Ask { key: 1, lease: 1005, session: true, ..plain(0) };
    steps.extend(asks(1, Command::Acquire(session)));
    steps.extend(asks(1, Command::Acquire(Ask { key: 2, reads: true, ..plain(1) })));
    let reads = AskAll { wants: [Want::Read; 3], ..all(1, 0b110) };
    steps.extend(asks(1, Command::AcquireAll(reads)));
    steps.extend(asks(0, Command::AcquireAll(all(0, 0b110))));
    let reads = AskAll { wants: [Want::Read; 3], ..all(2, 0b100) };
    steps.extend(asks(2, Command::AcquireAll(reads)));
    steps.extend([Step::Pass(1_300_000), TURN]);
    plays(1, &steps);
}

/// The world of this seed.
#[track_caller]
fn keeps_the_laws(seed: u64) {
    if let Err(story) = many(seed, Fault::None, WORLD_STEPS) {
        panic!("{story}");
    }
}

/// A lock becomes free just as an owner's waits there are canceled: one of them is granted, so the
/// owner's group needs no turn there. The group is canceled all the same. The story is too long to
/// be written down: it is given by its seed.
#[test]
fn a_wait_that_is_cancelled_when_its_owner_is_granted_leaves_nothing() {
    keeps_the_laws(21_005_670);
}

/// A request for several locks gives its owner holds with one token. One of them expires, and
/// `RENAME` moves another one to its key, where the owner releases it.
#[test]
fn a_hold_that_rename_brings_may_have_the_token_of_the_one_that_ended() {
    keeps_the_laws(81_000_006_511);
    keeps_the_laws(89_000_006_268);
}

/// A group re-enters a hold that began in the same step, for a caller or for a blocked connection.
/// Its message comes after that of a reader who was granted later.
#[test]
fn a_group_that_reenters_comes_after_whom_it_did_not_wait_for() {
    keeps_the_laws(82_000_003_743);
    keeps_the_laws(90_000_005_482);
}

/// A group reaches a lock where a hold of its own connection's session has expired. The step there
/// stops, to check the next owner's permission, and continues.
#[test]
fn who_comes_where_its_session_ends_leaves_no_place_though_the_step_stops() {
    let mut steps: Vec<Step> = (0..3).map(|who| Step::Connect(who, 0)).collect();
    steps.extend(asks(0, Command::Acquire(Ask { reads: true, lease: 300, ..plain(0) })));
    let session = Ask { key: 1, lease: 1001, session: true, ..plain(0) };
    steps.extend(asks(0, Command::Acquire(session)));
    let waits = Ask { key: 1, reads: true, patience: Patience::Block(2000), ..plain(3) };
    steps.extend(asks(1, Command::Acquire(waits)));
    let wants = [Want::Write, Want::Read, Want::Read];
    steps.extend(asks(0, Command::AcquireAll(AskAll { wants, ..all(1, 0b011) })));
    steps.extend([Step::Pass(1_104_000), TURN]);
    plays(1, &steps);
}

/// Two requests of one owner for several locks are granted in the same step, and both wait for
/// acknowledgments: the later one re-enters the holds of the first one, and overtakes nobody. The
/// story is given by its seed, as above.
#[test]
fn who_waits_twice_for_a_lock_reenters_the_first_time_it_is_granted() {
    keeps_the_laws(3_003_471);
}

/// A group has its turn at its first lock when it times out, and does not move on. Before the next
/// sweep, the clock is set back, but the wait has ended.
#[test]
fn who_does_not_move_on_because_its_time_has_passed_waits_no_more() {
    let mut steps: Vec<Step> = (0..3).map(|who| Step::Connect(who, 0)).collect();
    steps.extend(asks(1, Command::Acquire(Ask { lease: 550, ..plain(1) })));
    let group = AskAll { patience: Patience::Block(500), ..all(2, 0b111) };
    steps.extend([Step::Tell(2, Command::AcquireAll(group), 2), Step::Read(2)]);
    steps.push(Step::Pass(600_000));
    steps.extend(asks(0, Command::Acquire(plain(0))));
    steps.extend([Step::Clock(0, -200), Step::Turn(0, 1)]);
    plays(1, &steps);
}

/// A lock is renamed to a key that is reserved for a group. The group's owner holds that lock, so
/// the group needs no turn there. Until the queue is served, nothing else is reserved.
#[test]
fn who_is_covered_has_no_turn_before_the_queue_is_served() {
    let (read, write) = (Want::Read, Want::Write);
    let loops = |tasks| Step::Turn(2, tasks);
    let mut steps = vec![Step::Promote(2)];
    steps.extend([4, 3, 1].map(|who| Step::Connect(who, 2)));
    let wants = [write, Want::Limit(2), write];
    let some = AskAll { lease: 5, wants, patience: Patience::Block(2000), ..all(1, 0b110) };
    steps.extend(asks(1, Command::AcquireAll(some)));
    let some = AskAll { lease: 5000, wants: [write; 3], owner: 0, ..some };
    let both = AskAll { keys: Keys { bits: 0b011, is_reversed: true }, with_ttl: true, ..some };
    steps.push(Step::Send(4, Command::AcquireAll(both)));
    steps.push(Step::Connect(0, 2));
    steps.extend(asks(0, Command::Subscribe(0)));
    let patience = Patience::Block(2000);
    let reads = Ask { key: 2, reads: true, lease: 3000, patience, ..plain(0) };
    steps.extend([Step::Tell(0, Command::Acquire(reads), 0), Step::Read(0)]);
    steps.extend(asks(
        3,
        Command::AcquireAll(AskAll {
            lease: 5,
            owner: 3,
            keys: Keys { bits: 0b110, is_reversed: false },
            ..some
        }),
    ));
    steps.extend([Step::Read(4), Step::Follow(0, 2), Step::Deliver(0), loops(255)]);
    steps.extend([Step::Deliver(0), Step::HearAck(0), Step::Connect(2, 2)]);
    let wants = [Want::Limit(2), Want::Limit(2), read];
    let keys = Keys { bits: 0b111, is_reversed: true };
    let acked = AskAll { owner: 2, keys, wants, lease: 1050, acks: 1, ..some };
    steps.extend([Step::Tell(2, Command::AcquireAll(acked), 2), Step::Read(2)]);
    steps.extend([Step::HangUp(4), Step::Connect(4, 2)]);
    let keys = Keys { bits: 0b001, is_reversed: false };
    let one = AskAll { keys, lease: 6000, patience: Patience::Block(500), ..acked };
    steps.extend(asks(2, Command::AcquireAll(one)));
    steps.extend([Step::Send(4, Command::FlushAll), Step::Notice(4), Step::Read(4), loops(255)]);
    steps.extend([Step::Deliver(0), Step::Deliver(0), Step::Deliver(0), Step::HearAck(0)]);
    let keys = Keys { bits: 0b111, is_reversed: false };
    let wants = [read, Want::Limit(1), read];
    let all = AskAll { owner: 0, keys, wants, lease: 1005, session: true, with_ttl: true, ..acked };
    steps.extend([Step::Send(4, Command::AcquireAll(all)), Step::Send(2, Command::Rename(2, 0))]);
    steps.extend([loops(255), Step::Read(4), loops(1), Step::Read(2), loops(2)]);
    plays_among(3, 5, &steps);
}

/// The law was wrong: the lease of the first of its locks has ended too, so the group is about to
/// go back and to give up the place that it got at the second. The story is given by its seed, as
/// above.
#[test]
fn who_is_about_to_go_back_keeps_nobody_out_where_it_stands_meanwhile() {
    keeps_the_laws(23_000_031_030);
}
