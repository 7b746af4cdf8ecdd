//! Many observers of one lock, as a crowd.

use redis::Value;

use crate::crowd::{Crowd, connected};
use crate::stage::until_all_is_read;
use rlock_testkit::{Server, Waiter, integer, items};

/// One client acquires and releases the lock alternately. All observers get each change, and ask
/// again. Each of these commands is one step.
pub struct Observers {
    people: Vec<Waiter>,
    holder: Waiter,
    watcher: Waiter,
    /// The last token that all observers know.
    known: i64,
}

impl Crowd for Observers {
    const STEPS: usize = 10_000;
    const SIZE_MAX: usize = 10_000;
    const IS_CONNECTED_EACH: bool = true;

    fn gather(server: &Server, size: usize) -> Self {
        let [holder, watcher] = [(); 2].map(|()| Waiter::connect(server));
        let mut crowd = Observers { people: connected(server, size), holder, watcher, known: 0 };
        crowd.ask_again();
        crowd.go(2 * size);
        crowd
    }

    fn go(&mut self, steps: usize) {
        for _ in 0..steps.div_ceil(self.people.len()) {
            self.known = match self.known {
                0 => self.holder.number("RLOCK.ACQUIRE hot holder LEASE 600000"),
                _ => self.holder.number("RLOCK.RELEASE hot holder"),
            };
            for person in &mut self.people {
                let told: Value = person.answer();
                assert_eq!(integer(&items(&told)[0]), self.known, "{told:?}");
            }
            self.ask_again();
        }
    }
}

impl Observers {
    fn ask_again(&mut self) {
        let line = format!("RLOCK.AWAIT hot {} BLOCK 0", self.known);
        self.people.iter_mut().for_each(|person| person.say(&line));
        until_all_is_read(&mut self.watcher);
    }
}
