//! Cycles of owners that wait for each other, found before the last of them blocks.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::support::{World, acquire, lease, release};
use rlock_core::waits_for::{STEPS_MAX, Search, Seen, Stand, Steps, WaitGraph, log_line, search};
use rlock_core::{Acquire, Input, Mode, Owner, Patience, Reply, WaiterId};

/// Several locks of one database.
#[derive(Default)]
struct Locks {
    locks: BTreeMap<&'static str, World>,
    seen: BTreeMap<&'static str, Seen>,
    opened: usize,
}

impl WaitGraph for Locks {
    type Wait = (&'static str, WaiterId);

    fn of(&mut self, owner: &Owner, most: usize) -> Vec<Self::Wait> {
        let waits = self.locks.iter().flat_map(|(name, world)| {
            let own = world.parked.iter().filter(|(_, other)| *other == owner.as_bytes());
            own.map(|(waiter, _)| (*name, *waiter))
        });
        waits.take(most).collect()
    }

    fn blockers(&mut self, wait: &Self::Wait, steps: &mut Steps) -> Vec<Owner> {
        let (name, waiter) = wait;
        self.look(name, Stand::Parked(*waiter), steps)
    }
}

impl Locks {
    fn at(&mut self, name: &'static str) -> &mut World {
        self.locks.entry(name).or_insert_with(World::new)
    }

    fn holds(&mut self, owner: &'static str, mode: Mode, name: &'static str) {
        let ask = acquire(owner.as_bytes(), mode, 100_000);
        let reply = self.at(name).step(Input::Acquire(ask)).reply;
        assert!(matches!(reply, Reply::Granted { .. }), "{owner} has {name}");
    }

    /// Blocks the owner; if that would close a cycle, returns the owners in it instead.
    fn waits(&mut self, owner: &'static str, mode: Mode, name: &'static str) -> Vec<String> {
        self.asks(
            Acquire { patience: Patience::Block, ..acquire(owner.as_bytes(), mode, 1000) },
            name,
        )
    }

    fn asks(&mut self, ask: Acquire<'static>, name: &'static str) -> Vec<String> {
        match self.search(&ask, name) {
            Search::NoCycle => {
                assert!(self.at(name).block(ask, None).1.is_some(), "it has to wait");
                Vec::new()
            }
            Search::Cycle(cycle) => {
                let owners: Vec<Owner> = cycle.into_iter().map(|(owner, _)| owner).collect();
                let nobody = |world: &World| {
                    world.lock.nobody_waits_for(&world.volatile, ask.owner, world.now)
                };
                assert!(!self.locks.values().all(nobody), "somebody of {owners:?} waits for it");
                let name = |owner: &Owner| String::from_utf8(owner.as_bytes().to_vec()).unwrap();
                owners.iter().map(name).collect()
            }
            Search::GaveUp => panic!("few steps are enough"),
        }
    }

    fn search(&mut self, ask: &Acquire<'static>, name: &'static str) -> Found {
        self.at(name);
        self.seen.clear();
        let mut steps = Steps::default();
        let who = Stand::Asking(*ask);
        let first = self.look(name, who, &mut steps);
        let wait = (name, WaiterId::from(u64::MAX));
        search(self, &Owner::from(ask.owner), wait, first, &mut steps)
    }

    fn look(&mut self, name: &'static str, who: Stand<'_>, steps: &mut Steps) -> Vec<Owner> {
        if !steps.take() {
            return Vec::new();
        }
        self.opened += 1;
        let (world, seen) = (&self.locks[name], self.seen.entry(name).or_default());
        world.lock.blockers(&world.volatile, who, world.now, seen, steps)
    }
}

type Found = Search<(&'static str, WaiterId)>;

const NOBODY: Vec<String> = Vec::new();

#[test]
fn three_owners_and_three_locks_are_a_cycle_for_the_last() {
    let mut locks = Locks::default();
    for (owner, name) in [("a", "1"), ("b", "2"), ("c", "3")] {
        locks.holds(owner, Mode::Write, name);
    }
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Write, "3"), NOBODY);
    assert_eq!(locks.waits("c", Mode::Write, "1"), ["c", "a", "b"]);
}

#[test]
fn a_chain_is_no_cycle() {
    let mut locks = Locks::default();
    for (owner, name) in [("a", "1"), ("b", "2"), ("c", "3")] {
        locks.holds(owner, Mode::Write, name);
    }
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Write, "3"), NOBODY);
    assert_eq!(locks.waits("d", Mode::Write, "1"), NOBODY);
}

/// A reader behind a reader waits for the writer ahead of both, not for the reader.
#[test]
fn a_reader_does_not_wait_for_readers() {
    let mut locks = Locks::default();
    locks.holds("w", Mode::Write, "1");
    locks.holds("b", Mode::Write, "2");
    assert_eq!(locks.waits("a", Mode::Read, "1"), NOBODY);
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Read, "1"), NOBODY);
    // But a writer waits for both.
    let mut locks = Locks::default();
    locks.holds("w", Mode::Write, "1");
    locks.holds("b", Mode::Write, "2");
    assert_eq!(locks.waits("a", Mode::Read, "1"), NOBODY);
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Write, "1"), ["b", "a"]);
}

#[test]
fn a_writer_waits_for_every_reader_that_holds() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    locks.holds("b", Mode::Read, "1");
    locks.holds("c", Mode::Write, "2");
    assert_eq!(locks.waits("b", Mode::Write, "2"), NOBODY);
    assert_eq!(locks.waits("c", Mode::Write, "1"), ["c", "b"]);
}

/// A waiter waits for those ahead of it, even if they hold nothing.
#[test]
fn one_waits_for_those_ahead() {
    let mut locks = Locks::default();
    locks.holds("x", Mode::Read, "1");
    locks.holds("b", Mode::Write, "2");
    assert_eq!(locks.waits("a", Mode::Write, "1"), NOBODY);
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Read, "1"), ["b", "a"]);
}

#[test]
fn an_upgrader_waits_for_the_other_readers_and_for_nobody_in_line() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    locks.holds("b", Mode::Read, "1");
    locks.holds("a", Mode::Write, "2");
    assert_eq!(locks.waits("c", Mode::Write, "1"), NOBODY);
    assert_eq!(locks.waits("c", Mode::Write, "2"), NOBODY);
    let upgrade =
        Acquire { upgrade: true, patience: Patience::Block, ..acquire(b"a", Mode::Write, 1000) };
    assert_eq!(locks.asks(upgrade, "1"), NOBODY, "c waits for a, but a stands before c");
    // b holds READ of 1 and would wait for a, who waits for b.
    assert_eq!(locks.waits("b", Mode::Write, "2"), ["b", "a"]);
}

/// An upgrader comes in front of everybody, and of an earlier wait of its own as well: it waits for
/// the other reader, and not for the writer that its other connection stands behind.
#[test]
fn an_upgrader_does_not_wait_where_its_other_wait_stands() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    for (owner, mode) in
        [("b", Mode::Write), ("c", Mode::Read), ("b", Mode::Write), ("c", Mode::Write)]
    {
        assert_eq!(locks.waits(owner, mode, "1"), NOBODY);
    }
    let world = locks.at("1");
    let first = *world.parked.keys().next().unwrap();
    world.leave(first);
    let woken = world.step(Input::Tick).wakes;
    assert!(matches!(woken[0].reply, Reply::Granted { .. }), "c reads");
    let upgrade =
        Acquire { upgrade: true, patience: Patience::Block, ..acquire(b"c", Mode::Write, 1000) };
    assert_eq!(locks.asks(upgrade, "1"), NOBODY);
}

#[test]
fn tickets_wait_for_nobody_and_nobody_waits_for_a_ticket() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Write, "1");
    locks.holds("b", Mode::Write, "2");
    let ticket =
        Acquire { patience: Patience::Ticket(lease(60_000)), ..acquire(b"a", Mode::Write, 1000) };
    let _ = locks.at("2").step(Input::Acquire(ticket));
    assert_eq!(locks.waits("b", Mode::Write, "1"), NOBODY);

    // The same, if the ticket stands ahead of somebody for whom its owner waits.
    let mut locks = Locks::default();
    locks.holds("x", Mode::Write, "2");
    locks.holds("c", Mode::Write, "3");
    let _ = locks.at("2").step(Input::Acquire(ticket));
    assert_eq!(locks.waits("a", Mode::Write, "3"), NOBODY);
    assert_eq!(locks.waits("c", Mode::Write, "2"), NOBODY);
}

fn limited(owner: &'static str, limit: u32) -> Acquire<'static> {
    let (patience, limit) = (Patience::Block, NonZeroU32::new(limit));
    Acquire { patience, limit, ..acquire(owner.as_bytes(), Mode::Read, 1000) }
}

/// With a limit of one, all readers must release; with a higher limit, any one of them may.
#[test]
fn the_last_permit_is_waited_for_as_a_writer_waits() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    locks.holds("b", Mode::Read, "2");
    assert_eq!(locks.asks(limited("a", 1), "2"), NOBODY);
    assert_eq!(locks.asks(limited("b", 1), "1"), ["b", "a"]);

    let mut locks = Locks::default();
    for (owner, name) in [("a", "1"), ("c", "1"), ("b", "2"), ("d", "2")] {
        locks.holds(owner, Mode::Read, name);
    }
    assert_eq!(locks.asks(limited("a", 2), "2"), NOBODY);
    assert_eq!(locks.asks(limited("b", 2), "1"), NOBODY, "c or d may leave");
}

/// A reader behind a request with a limit waits for that request, which in turn waits for a writer.
#[test]
fn one_that_waits_under_a_limit_stops_readers_behind_it() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    locks.holds("r", Mode::Read, "1");
    locks.holds("l", Mode::Write, "2");
    assert_eq!(locks.asks(limited("l", 2), "1"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Read, "1"), NOBODY);
    assert_eq!(locks.asks(limited("a", 3), "2"), NOBODY, "a or r may leave");
    locks.holds("b", Mode::Write, "3");
    assert_eq!(locks.asks(limited("l", 3), "3"), ["l", "b"]);
}

/// A request with a limit waits for the writer ahead of it, and the writer for every reader.
#[test]
fn a_limit_waits_for_writers_ahead() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    locks.holds("b", Mode::Read, "2");
    assert_eq!(locks.waits("w", Mode::Write, "1"), NOBODY);
    assert_eq!(locks.asks(limited("b", 9), "1"), NOBODY);
    assert_eq!(locks.waits("a", Mode::Write, "2"), ["a", "b", "w"]);
}

/// A reader behind its owner's own WRITE request waits for whatever that request waits for.
#[test]
fn one_that_stands_behind_its_own_wait_waits_for_what_that_one_waits_for() {
    let mut locks = Locks::default();
    locks.holds("r", Mode::Read, "1");
    locks.holds("a", Mode::Write, "2");
    assert_eq!(locks.waits("a", Mode::Write, "1"), NOBODY);
    assert_eq!(locks.waits("r", Mode::Write, "2"), ["r", "a"]);
    let ask = acquire(b"a", Mode::Read, 1000);
    let who = Stand::Asking(ask);
    locks.seen.clear();
    let first = locks.look("1", who, &mut Steps::default());
    assert_eq!(first, [Owner::from(&b"r"[..])], "its own WRITE waits for the reader");
}

/// An owner that sends another request gives up its turn, and upgrades are then ahead of it.
#[test]
fn nobody_who_upgrades_waits_for_one_who_gives_up_its_turn() {
    let mut locks = Locks::default();
    locks.holds("w", Mode::Write, "1");
    let patience = Patience::Ticket(lease(60_000));
    let ticket = Acquire { patience, ..acquire(b"b", Mode::Read, 1000) };
    drop(locks.at("1").step(Input::Acquire(ticket)));
    drop(locks.at("1").step(Input::Release(release(b"w"))));
    locks.holds("a", Mode::Read, "1");
    let upgrade =
        Acquire { upgrade: true, patience: Patience::Block, ..acquire(b"a", Mode::Write, 1000) };
    assert_eq!(locks.asks(upgrade, "1"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Write, "1"), NOBODY);
}

/// The first grant makes the second a re-entry: a client that sends again is in no cycle.
#[test]
fn one_that_asks_again_on_another_connection_is_in_no_cycle() {
    for (first, second) in
        [(Mode::Write, Mode::Write), (Mode::Write, Mode::Read), (Mode::Read, Mode::Read)]
    {
        let mut locks = Locks::default();
        locks.holds("x", Mode::Write, "1");
        assert_eq!(locks.waits("a", first, "1"), NOBODY);
        assert_eq!(locks.waits("b", Mode::Write, "1"), NOBODY);
        assert_eq!(locks.waits("a", second, "1"), NOBODY, "{first:?} {second:?}");
    }
}

/// A READ ahead does not make WRITE a re-entry: it waits for the writer between, who waits for it.
#[test]
fn a_writer_behind_a_stranger_behind_its_own_reader_is_in_a_cycle() {
    let mut locks = Locks::default();
    locks.holds("x", Mode::Write, "1");
    assert_eq!(locks.waits("a", Mode::Read, "1"), NOBODY);
    assert_eq!(locks.waits("b", Mode::Write, "1"), NOBODY);
    assert_eq!(locks.waits("a", Mode::Write, "1"), ["a", "b"]);
}

/// The caller does not meet itself at the lock where it would wait, but the next owner of the path
/// does.
#[test]
fn who_met_itself_at_a_lock_is_met_by_the_next_one() {
    let mut locks = Locks::default();
    locks.holds("s", Mode::Read, "1");
    locks.holds("b", Mode::Read, "1");
    locks.holds("x", Mode::Write, "2");
    // b, which reads 1 too, waits for WRITE of 1 with an upgrade; x waits behind it.
    let upgrade =
        Acquire { upgrade: true, patience: Patience::Block, ..acquire(b"b", Mode::Write, 1000) };
    assert_eq!(locks.asks(upgrade, "1"), NOBODY);
    assert_eq!(locks.waits("x", Mode::Write, "1"), NOBODY);
    // s reads 1 and would wait for x, who waits for b, who waits for s.
    assert!(!locks.waits("s", Mode::Write, "2").is_empty());
    // A single lock is enough: b waits for s, and s would wait for b.
    assert!(!locks.waits("s", Mode::Write, "1").is_empty());
}

/// Nobody waits for a ticket. But as soon as it becomes a blocked wait, in its place, those behind
/// it wait for it.
#[test]
fn a_ticket_that_becomes_a_blocked_wait_is_waited_for_by_those_behind_it() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    locks.holds("c", Mode::Write, "2");
    let ticket =
        Acquire { patience: Patience::Ticket(lease(60_000)), ..acquire(b"b", Mode::Write, 1000) };
    let _ = locks.at("1").step(Input::Acquire(ticket));
    assert_eq!(locks.waits("c", Mode::Read, "1"), NOBODY, "only a ticket is ahead");
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    // b waits for a, who waits for c, who would wait for b from then on.
    assert_eq!(locks.waits("b", Mode::Write, "1"), ["b", "a", "c"]);
}

/// An upgrade is ahead of those who stood there already.
#[test]
fn an_upgrader_is_waited_for_by_those_behind_it() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Read, "1");
    locks.holds("b", Mode::Read, "1");
    locks.holds("c", Mode::Write, "2");
    let ticket =
        Acquire { patience: Patience::Ticket(lease(60_000)), ..acquire(b"d", Mode::Write, 1000) };
    let _ = locks.at("1").step(Input::Acquire(ticket));
    assert_eq!(locks.waits("c", Mode::Read, "1"), NOBODY, "only a ticket is ahead");
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    let upgrade =
        Acquire { upgrade: true, patience: Patience::Block, ..acquire(b"b", Mode::Write, 1000) };
    assert_eq!(locks.asks(upgrade, "1"), ["b", "a", "c"]);
}

#[test]
fn leases_that_are_over_are_waited_for_by_nobody() {
    let mut locks = Locks::default();
    locks.holds("a", Mode::Write, "1");
    locks.holds("b", Mode::Write, "2");
    assert_eq!(locks.waits("a", Mode::Write, "2"), NOBODY);
    locks.at("1").advance_ms(100_000);
    let ask = acquire(b"b", Mode::Write, 1000);
    assert_eq!(locks.search(&ask, "1"), Search::NoCycle);
}

#[test]
fn the_search_gives_up_after_a_thousand_steps() {
    let mut locks = Locks::default();
    for number in 0..=STEPS_MAX {
        let owner: &'static str = format!("reader {number}").leak();
        let ask = acquire(owner.as_bytes(), Mode::Read, 100_000);
        let _ = locks.at("1").drive(Input::Acquire(ask));
    }
    let ask = acquire(b"w", Mode::Write, 1000);
    assert_eq!(locks.search(&ask, "1"), Search::GaveUp);
    let _ = locks.at("1").drive(Input::Force(None));
    assert_eq!(locks.search(&ask, "1"), Search::NoCycle);
}

#[test]
fn the_log_tells_the_whole_cycle_in_one_line() {
    let cycle = [(&b"a"[..], &b"k"[..]), (b"b\r\n", b"l")];
    let cycle = cycle.map(|(owner, key)| (Owner::from(owner), key));
    let told = concat!(
        r"deadlock: refused a wait that would close a cycle of 2 owners: ",
        r"'a' waits at 'k' for 'b\x0d\x0a', 'b\x0d\x0a' waits at 'l' for 'a'",
    );
    assert_eq!(log_line(&cycle, 0), told);
    let more = format!("{told}; 7 more refused since the last such line");
    assert_eq!(log_line(&cycle, 7), more);
}

/// The server cuts a line at 1024 bytes; owners that do not fit are counted.
#[test]
fn a_cycle_that_is_longer_than_a_line_of_the_log_says_how_many_are_left_out() {
    let names: Vec<Vec<u8>> = (0..300).map(|number| vec![b'\n'; number % 60 + 1]).collect();
    let cycle: Vec<(Owner, &[u8])> =
        names.iter().map(|name| (Owner::from(name.as_slice()), name.as_slice())).collect();
    let line = log_line(&cycle, 0);
    assert!(line.len() < 1000, "{} bytes", line.len());
    let said = line.matches(" waits at ").count();
    assert!(line.ends_with(&format!("and {} more", 300 - said)), "{line}");
    assert!(line.contains("a cycle of 300 owners"), "{line}");
}

/// A search through a thousand locks ends only because its budget is used up.
#[test]
fn a_lock_that_is_opened_is_a_step_of_the_search() {
    let mut locks = Locks::default();
    locks.holds("x", Mode::Write, "first");
    for number in 0..2 * STEPS_MAX {
        let name: &'static str = format!("lock {number}").leak();
        let holder: &'static str = format!("holder {number}").leak();
        locks.holds(holder, Mode::Write, name);
        assert!(locks.at(name).block(acquire(b"x", Mode::Write, 1000), None).1.is_some());
    }
    locks.opened = 0;
    let ask = acquire(b"w", Mode::Write, 1000);
    assert_eq!(locks.search(&ask, "first"), Search::GaveUp);
    assert!(locks.opened <= STEPS_MAX, "{} locks were opened", locks.opened);
}
