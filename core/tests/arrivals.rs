//! Values that arrive at a free name where somebody waits.

use crate::support::server::{Key, Server};
use crate::support::{acquire, lease, release};
use rlock_core::{Acquire, Input, Mode, Patience, Reply};

const K: Key = b"k";
const J: Key = b"l";

fn ticket(owner: &str) -> Acquire<'_> {
    let patience = Patience::Ticket(lease(60_000));
    Acquire { patience, ..acquire(owner.as_bytes(), Mode::Write, 1000) }
}

/// A ticket has its turn at a free name; then owner `a` is blocked there, or not.
fn turn(server: &mut Server) {
    server.holds(K, "x", None);
    server.ask(K, Input::Acquire(ticket("t")));
    server.ask(K, Input::Release(release(b"x")));
    server.sweep();
    server.swept.clear();
}

#[test]
fn an_owner_enters_where_its_own_hold_arrives() {
    let mut server = Server::new();
    turn(&mut server);
    assert!(!server.manager.expects_keys(), "a ticket's owner asks again");
    let waiter = server.waits(K, "a", Mode::Write, 1);
    assert!(server.manager.expects_keys());
    let Reply::Granted { token, .. } = server.holds(J, "a", None) else { panic!("not granted") };
    let lock = server.keys.remove(J).unwrap();
    server.keys.insert(K, lock);
    assert!(server.manager.key_came(0, K));
    server.sweep();
    let told = server.told.iter().find(|(other, _)| *other == waiter);
    assert!(
        matches!(told, Some((_, Reply::Granted { token: told, .. })) if *told == token),
        "{told:?}"
    );
}

/// A new key costs nothing if nobody is blocked at its name.
#[test]
fn a_key_that_comes_where_nobody_is_blocked_is_left_alone() {
    let mut server = Server::new();
    turn(&mut server);
    assert!(!server.manager.key_came(0, K), "only a ticket");
    server.waits(K, "a", Mode::Write, 1);
    assert!(!server.manager.key_came(1, K), "another database");
    assert!(!server.manager.key_came(0, J), "another name");
    server.sweep();
    assert!(server.swept.is_empty(), "{:?}", server.swept);
}
