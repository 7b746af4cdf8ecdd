//! Stories that once broke a law, each because of a mistake that has been fixed: in the core, or in
//! the law.

use crate::support::{TURN, plain, plays};
use rlock_simulation::command::{Ask, Command, Patience};
use rlock_simulation::step::Step;

/// A client requests `k0`.
fn asks(who: u8, ask: Ask) -> Step {
    Step::Send(who, Command::Acquire(ask))
}

fn session(owner: u8) -> Ask {
    Ask { session: true, ..plain(owner) }
}

fn blocks(ask: Ask) -> Ask {
    Ask { patience: Patience::Block(0), ..ask }
}

#[test]
fn a_session_is_that_of_the_connection_that_asked_last() {
    let reads = Ask { reads: true, ..blocks(plain(0)) };
    let upgrade = Ask { upgrade: true, ..session(0) };
    let steps = [
        Step::Connect(0, 0),
        Step::Connect(1, 0),
        Step::Connect(2, 0),
        asks(0, plain(1)),
        Step::Read(0),
        asks(1, reads),
        Step::Read(1),
        asks(2, blocks(session(0))),
        Step::Read(2),
        Step::Send(0, Command::Release(1, 0, true)),
        Step::Read(0),
        TURN,
        // It enters because of its UPGRADE, and so does client 2, which waited without UPGRADE.
        asks(1, upgrade),
        Step::Read(1),
        TURN,
        Step::CutOff(1),
        TURN,
        TURN,
    ];
    plays(1, &steps);
}

/// Two connections of one owner are blocked and granted together; the second one never reads its
/// reply.
fn granted_together(then: &[Step]) {
    let mut steps = vec![
        Step::Connect(0, 0),
        Step::Connect(1, 0),
        Step::Connect(2, 0),
        asks(0, plain(1)),
        Step::Read(0),
        asks(1, blocks(session(0))),
        Step::Read(1),
        asks(2, blocks(session(0))),
        Step::Read(2),
    ];
    steps.extend(then);
    plays(1, &steps);
}

#[test]
fn a_wait_that_is_denied_leaves_the_session_to_the_other_connection() {
    granted_together(&[
        Step::Allow(2, false),
        Step::Send(0, Command::Release(1, 0, true)),
        Step::Read(0),
        TURN,
        Step::CutOff(2),
        TURN,
        Step::CutOff(1),
        TURN,
    ]);
}

#[test]
fn a_grant_that_went_unheard_leaves_the_session_to_the_other_connection() {
    granted_together(&[
        Step::Send(0, Command::Release(1, 0, true)),
        Step::Read(0),
        Step::CutOff(2),
        TURN,
        TURN,
        Step::CutOff(1),
        TURN,
    ]);
}

/// A token does not show which server issued it: two servers may have granted one hold again.
#[test]
fn what_a_client_is_sure_of_was_told_by_its_own_server() {
    let short = |owner| Ask { lease: 3000, ..plain(owner) };
    let steps = [
        Step::Connect(0, 0),
        asks(0, short(0)),
        // The replica's initial data, and the grant.
        Step::Deliver(1),
        Step::Read(0),
        Step::Deliver(1),
        Step::Promote(1),
        Step::Connect(1, 1),
        asks(1, short(0)),
        Step::Read(1),
        Step::Hear(0),
        Step::Pass(1_000_000),
        // The hold lasts longer on the old primary than on the new one.
        asks(0, plain(0)),
        Step::Read(0),
        Step::Hear(0),
        Step::Pass(2_500_000),
        Step::Connect(2, 1),
        asks(2, plain(2)),
        Step::Read(2),
        Step::Hear(2),
    ];
    plays(2, &steps);
}

/// A hold that the next primary reported again is a promise of that primary, and so is its renewal.
#[test]
fn a_renewal_is_of_what_its_own_server_told() {
    let short = |lease| Ask { lease, ..plain(0) };
    let steps = [
        Step::Connect(0, 0),
        asks(0, short(5000)),
        Step::Read(0),
        // The replica's initial data, and the grant.
        Step::Deliver(1),
        Step::Deliver(1),
        Step::Hear(0),
        Step::Promote(1),
        Step::Connect(1, 0),
        Step::Pass(4_600_000),
        Step::HangUp(0),
        Step::Connect(0, 1),
        asks(0, short(3000)),
        Step::Read(0),
        Step::Hear(0),
        Step::Send(0, Command::Renew(0, 0, 3000, Some(false), 0)),
        Step::Pass(500_000),
        Step::Read(0),
        Step::Hear(0),
        // The hold has ended on the old primary.
        asks(1, Ask { reads: true, ..plain(1) }),
        Step::Read(1),
        Step::Hear(1),
    ];
    plays(2, &steps);
}

#[test]
fn a_session_that_its_server_ended_lasts_as_long_as_its_lease_when_the_clock_goes_back() {
    let steps = [
        Step::Connect(0, 0),
        asks(0, Ask { lease: 4000, ..session(0) }),
        Step::Read(0),
        // While somebody waits, the key outlives its deadline.
        Step::Connect(1, 0),
        asks(1, Ask { patience: Patience::Queue(5), ..plain(1) }),
        Step::Read(1),
        Step::MinReplicas(0, 1),
        Step::Pass(4_001_000),
        // Its lease has ended, and the gate is shut.
        TURN,
        Step::Clock(0, -1000),
        TURN,
        Step::MinReplicas(0, 0),
        TURN,
    ];
    plays(1, &steps);
}

/// A connection is granted the lock while it is parked, and does not read its reply.
fn granted_while_parked(then: &[Step]) {
    let mut steps = vec![
        Step::Allow(1, false),
        Step::Connect(0, 0),
        Step::Connect(1, 0),
        asks(0, Ask { lease: 5, ..plain(0) }),
        Step::Read(0),
        asks(1, blocks(plain(1))),
        Step::Read(1),
        Step::Pass(10_000),
        // The lease has ended: client 1 is next, so this request waits; but client 1 has lost its
        // permission.
        asks(0, blocks(session(0))),
        Step::Read(0),
    ];
    steps.extend(then);
    steps.extend([TURN, TURN]);
    plays(1, &steps);
}

#[test]
fn who_is_granted_while_it_is_parked_and_does_not_hear_holds_nothing() {
    granted_while_parked(&[TURN, Step::HangUp(0), Step::Notice(0)]);
    granted_while_parked(&[Step::HangUp(0), Step::Notice(0)]);
    granted_while_parked(&[Step::Unblock(0, true)]);
}

/// The law was wrong: the owner re-enters what it was granted under another key.
#[test]
fn who_waits_for_a_lock_that_becomes_its_own_passes_whoever_waits() {
    let reads = |owner| Ask { reads: true, ..plain(owner) };
    let other = |ask| Ask { key: 1, ..ask };
    let steps = [
        Step::Connect(0, 0),
        Step::Connect(1, 0),
        Step::Connect(2, 0),
        asks(0, reads(3)),
        Step::Read(0),
        asks(0, Ask { lease: 5, ..other(reads(0)) }),
        Step::Read(0),
        Step::Pass(27_000),
        asks(0, blocks(plain(0))),
        Step::Read(0),
        asks(1, blocks(reads(1))),
        Step::Read(1),
        asks(2, other(reads(1))),
        Step::Read(2),
        Step::Send(2, Command::Rename(1, 0)),
        Step::Read(2),
        TURN,
    ];
    plays(1, &steps);
}

/// The law was wrong: within one transaction, another connection of the owner takes over the
/// session, and an operator ends the hold. The first connection has lost no session of its own.
#[test]
fn a_session_that_moves_in_the_step_that_ends_it_is_the_other_connections() {
    let again = Command::Acquire(Ask { depth: Some(1), ..session(0) });
    let mut steps = vec![Step::Connect(0, 0), Step::Connect(1, 0)];
    steps.extend([asks(0, session(0)), Step::Read(0)]);
    for command in [Command::Multi, again, Command::Force(0), Command::Exec(false)] {
        steps.extend([Step::Send(1, command), Step::Read(1)]);
    }
    steps.extend([TURN, TURN]);
    plays(1, &steps);
}
