//! Stories about acknowledged grants that once broke a law, each because of a mistake that has been
//! fixed: in the core, or in the law.

use crate::support::{TURN, all, plain, plays};
use rlock_simulation::command::{Ask, Command, Patience};
use rlock_simulation::several::AskAll;
use rlock_simulation::step::Step;

/// A client sends a request, and its server reads it.
fn asks(who: u8, ask: Ask) -> [Step; 2] {
    [Step::Send(who, Command::Acquire(ask)), Step::Read(who)]
}

fn says(who: u8, command: Command) -> [Step; 2] {
    [Step::Send(who, command), Step::Read(who)]
}

/// The same, with one acknowledgment.
fn acked(owner: u8) -> Ask {
    Ask { acks: 1, ..plain(owner) }
}

/// The replica receives the next command, which asks for its offset; its primary reads the reply,
/// and checks it.
const ACKNOWLEDGES: [Step; 3] = [Step::Deliver(1), Step::HearAck(1), TURN];

/// A primary with one replica, which counts, and three clients.
#[track_caller]
fn keeps_the_laws(steps: &[&[Step]]) {
    let connect = [Step::Connect(0, 0), Step::Connect(1, 0), Step::Connect(2, 0)];
    let begin: [&[Step]; 3] = [&connect, &[Step::Deliver(1), TURN], &ACKNOWLEDGES];
    plays(2, &[&begin, steps].concat().concat());
}

/// The law was wrong: the first owner itself gave up its level.
#[test]
fn a_level_that_was_told_is_released_and_the_other_one_taken_back() {
    let again = Ask { session: true, ..plain(0) };
    keeps_the_laws(&[
        &asks(0, again),
        &asks(1, acked(0)),
        &says(0, Command::Release(0, 0, false)),
        &[Step::CutOff(1), TURN, TURN],
    ]);
}

/// The core was wrong: the last request was reported at once, and only its owner's pending level
/// remained.
#[test]
fn nobody_is_told_at_once_of_a_level_that_nobody_heard_of() {
    let blocks = |ask| Ask { patience: Patience::Block(500), ..ask };
    keeps_the_laws(&[
        &asks(1, plain(1)),
        &asks(0, blocks(plain(0))),
        &[Step::Allow(0, false)],
        &asks(2, blocks(acked(0))),
        &says(1, Command::Release(1, 0, true)),
        &asks(1, blocks(Ask { depth: Some(1), ..plain(0) })),
        &[Step::CutOff(2), TURN, TURN],
    ]);
}

/// The law was wrong: the renewal reported a hold, but not the level that remained of it.
#[test]
fn a_level_that_nobody_heard_of_is_taken_back_after_a_renewal_too() {
    keeps_the_laws(&[
        &asks(0, plain(0)),
        &asks(1, Ask { patience: Patience::Block(40), ..acked(0) }),
        &[TURN, Step::Deliver(1), Step::Deliver(1), Step::Deliver(1), Step::HearAck(1)],
        &says(0, Command::Renew(0, 0, 300, Some(false), 0)),
        &says(0, Command::Release(0, 0, false)),
        &[TURN, Step::HangUp(1), Step::Notice(1), TURN],
    ]);
}

/// The law was wrong: another connection of its owner had got it before, without acknowledgments.
#[test]
fn what_an_old_primary_has_acknowledged_after_a_promotion_is_not_promised() {
    let reads = |ask| Ask { reads: true, patience: Patience::Block(500), ..ask };
    let begin = [Step::Connect(0, 0), Step::Connect(1, 0), Step::Connect(2, 0)];
    let steps: [&[Step]; 10] = [
        &begin,
        &[Step::Deliver(1), TURN],
        &ACKNOWLEDGES,
        &asks(2, plain(2)),
        &asks(0, reads(plain(0))),
        &asks(1, reads(acked(0))),
        &says(2, Command::Release(2, 0, false)),
        &[TURN, Step::Deliver(1), Step::Deliver(1), Step::Deliver(1), Step::Promote(2)],
        &[Step::HearAck(1), Step::HangUp(2), Step::Connect(2, 2), TURN, TURN],
        &[Step::Send(2, Command::Acquire(plain(1))), Step::Read(2), Step::Hear(2), Step::Hear(1)],
    ];
    plays(3, &steps.concat());
}

/// The law was wrong: when the same connection got the session again, the law forgot the deadline
/// that this connection had got.
#[test]
fn a_session_that_is_tied_again_lasts_as_it_was_told() {
    let session = |ms| Ask { session: true, patience: Patience::Block(ms), ..acked(0) };
    keeps_the_laws(&[
        &asks(0, session(500)),
        &asks(1, session(500)),
        &[TURN, Step::Deliver(1), Step::Deliver(1), Step::Deliver(1), Step::HearAck(1)],
        &[TURN, Step::Promote(1), Step::CutOff(1), TURN],
    ]);
}

/// The law was wrong: the old primary, which already follows the new one, does not confirm its own
/// grant. That says nothing about the new primary's grant with the same token.
#[test]
fn what_the_old_primary_does_not_confirm_the_new_one_granted() {
    let blocks = Ask { patience: Patience::Block(40), ..acked(0) };
    let again = Ask { depth: Some(2), ..plain(0) };
    keeps_the_laws(&[
        &[Step::Tell(0, Command::Acquire(blocks), 0), Step::Read(0), Step::Deliver(1)],
        &[Step::Promote(1), Step::Follow(0, 1), Step::HangUp(1), Step::HangUp(2)],
        &[Step::Connect(1, 1), Step::Connect(2, 1)],
        &asks(1, again),
        &[Step::Hear(1), Step::Deliver(0), TURN],
        &says(2, Command::Force(0)),
        &asks(2, plain(2)),
        &[Step::Hear(2), Step::Hear(2)],
    ]);
}

/// The core was wrong: all holds of one grant share its token, so if another lock of the grant is
/// renamed to this key, its levels must not be revoked.
#[test]
fn a_level_that_nobody_heard_of_goes_with_its_key() {
    let several = AskAll { patience: Patience::None, ..all(0, 0b110) };
    let again = Ask { key: 2, patience: Patience::Block(500), ..acked(0) };
    keeps_the_laws(&[
        &says(0, Command::AcquireAll(several)),
        &asks(0, again),
        &[Step::CutOff(0)],
        &says(1, Command::Rename(1, 2)),
        &[TURN],
    ]);
}
