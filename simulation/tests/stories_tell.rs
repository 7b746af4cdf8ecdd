//! Rules of waits with `TELL`, as stories. No law breaks, and the rule's subject happens. With a
//! planted fault, the law for this rule breaks.

use crate::support::{TURN, breaks, plain, plays_among};
use rlock_engine::PlantedFault;
use rlock_simulation::command::{Ask, Command, Patience};
use rlock_simulation::fault::Fault;
use rlock_simulation::seen::Kind;
use rlock_simulation::step::Step;

/// The channel to which client 0 subscribes.
const CHANNEL: u8 = 0;

/// A client sends this, and its server executes it.
fn says(who: u8, command: Command) -> [Step; 2] {
    [Step::Send(who, command), Step::Read(who)]
}

/// Client 0 requests this with `TELL`.
fn tells(ask: Ask) -> [Step; 2] {
    [Step::Tell(0, Command::Acquire(ask), CHANNEL), Step::Read(0)]
}

fn waits(owner: u8) -> Ask {
    Ask { patience: Patience::Block(0), ..plain(owner) }
}

/// Client 1 holds the lock, and client 0 waits for it with this request, or with several.
fn begin(subscribes: bool, asks: &[Ask]) -> Vec<Step> {
    let mut steps: Vec<Step> = (0..3).map(|who| Step::Connect(who, 0)).collect();
    steps.extend(says(1, Command::Acquire(plain(1))));
    if subscribes {
        steps.extend(says(0, Command::Subscribe(CHANNEL)));
    }
    steps.extend(asks.iter().flat_map(|ask| tells(*ask)));
    steps
}

/// Client 1 releases the lock, and its server does what is due.
fn release() -> [Step; 3] {
    let [sends, reads] = says(1, Command::Release(1, 0, true));
    [sends, reads, TURN]
}

#[track_caller]
fn rule(nodes: u8, steps: &[Step], kind: Kind, fault: Fault, law: &str) {
    let seen = plays_among(nodes, 3, steps);
    assert!(seen.of(kind) > 0, "{kind:?} was not seen");
    assert_eq!(breaks(fault, nodes, steps), Some(law), "{fault:?}");
}

#[test]
fn t3_who_waits_has_exactly_one_message() {
    let steps = [&begin(true, &[waits(0)])[..], &release(), &[Step::Hear(0), TURN]].concat();
    let fault = Fault::Engine(PlantedFault::ToldTwice);
    rule(1, &steps, Kind::ToldByMessage, fault, "exactly one message");
}

/// Client 0 does not listen: client 2, which is blocked behind it, gets the lock in the same step.
#[test]
fn t5_who_does_not_listen_is_not_granted() {
    let steps = [&begin(false, &[waits(0)])[..], &says(2, Command::Acquire(waits(2))), &release()];
    let fault = Fault::Engine(PlantedFault::ListenersNotAsked);
    let law = "nothing is granted to who does not listen";
    rule(1, &steps.concat(), Kind::Untold, fault, law);
}

#[test]
fn t7_who_asks_again_takes_its_place() {
    let again = Ask { lease: 3000, ..waits(0) };
    let steps = [&begin(true, &[waits(0), again])[..], &release(), &[Step::Hear(0), TURN]].concat();
    rule(1, &steps, Kind::AskedAgain, Fault::UserUnknown, "who asks again takes its place");
}

#[test]
fn t13_a_request_for_a_session_ends_with_its_connection() {
    let session = Ask { session: true, ..waits(0) };
    let steps = [&begin(true, &[session])[..], &[Step::CutOff(0), TURN], &release()].concat();
    let law = "a request for a session ends with its connection";
    rule(1, &steps, Kind::TellClosed, Fault::AskerKept, law);
}

/// The replica receives the next command, which asks for its offset; its primary reads the reply,
/// and checks it.
const ACKNOWLEDGES: [Step; 3] = [Step::Deliver(1), Step::HearAck(1), TURN];

#[test]
fn t14_the_message_leaves_when_replicas_have_acknowledged_the_grant() {
    let connects: Vec<Step> = (0..3).map(|who| Step::Connect(who, 0)).collect();
    let steps: [&[Step]; 7] = [
        &connects,
        &[Step::Deliver(1), TURN],
        &ACKNOWLEDGES,
        &says(0, Command::Subscribe(CHANNEL)),
        &tells(Ask { acks: 1, ..plain(0) }),
        &[TURN, Step::Deliver(1)],
        &[&ACKNOWLEDGES[..], &[Step::Hear(0)]].concat(),
    ];
    let law = "nobody is told before replicas acknowledged";
    rule(2, &steps.concat(), Kind::ToldByMessage, Fault::ToldAtOnce, law);
}
