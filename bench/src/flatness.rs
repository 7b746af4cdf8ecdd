//! How much one step costs the server when few clients wait or hold, and when many do. The cost
//! should be the same.

use crate::Profile;
use crate::book::{Book, column};
use crate::crowd::Crowd;
use crate::observers::Observers;
use crate::queues::{Line, Pings, Readers, Tickets};
use crate::quiet::{PExpires, Reentries, Renewals};
use crate::redissons::{FairLine, ReadHolders};
use crate::sample::Sample;
use crate::stage::{CpuClock, may_open, server_for};

/// Server CPU in microseconds, with a column for each number of waiters or holders.
pub const SECTION: &str = "waiting: server CPU per step, µs, with this many others";
pub const HAND_OFF: &str = "hand-off to a blocked connection";
pub const SEARCH: &str = "the same, looking for deadlocks";
pub const POLL: &str = "poll of a ticket that is not first";
pub const READ: &str = "READ acquire + release, with other readers";
pub const OBSERVER: &str = "an observer is told, and asks again";
pub const PING: &str = "for comparison: PING by each in turn";
pub const FAIR: &str = "for comparison: hand-off by Redisson's fair scripts";
pub const READ_BY_SCRIPTS: &str = "for comparison: the pair by Redisson's read scripts";
pub const REENTRY: &str = "re-entry + RELEASE, with other levels";
pub const RENEW: &str = "RENEW, with other held locks";
pub const PEXPIRE: &str = "for comparison: PEXPIRE, with other keys";

/// The numbers of waiters or holders. Crowds with a connection for each client go up to the fourth.
const SIZES: [usize; 5] = [1, 100, 1000, 10_000, 100_000];

/// Measures all crowds.
pub fn measure(book: &mut Book, profile: Profile) {
    flat::<Line<false>>(book, profile, HAND_OFF);
    flat::<Line<true>>(book, profile, SEARCH);
    flat::<Observers>(book, profile, OBSERVER);
    flat::<Pings>(book, profile, PING);
    flat::<FairLine>(book, profile, FAIR);
    flat::<Tickets>(book, profile, POLL);
    flat::<Readers>(book, profile, READ);
    flat::<ReadHolders>(book, profile, READ_BY_SCRIPTS);
    flat::<Reentries>(book, profile, REENTRY);
    flat::<Renewals>(book, profile, RENEW);
    flat::<PExpires>(book, profile, PEXPIRE);
}

/// The greatest figure of one row divided by its smallest, for sizes from 1 to 10 000.
pub fn spread(book: &Book, row: &str) -> Option<f64> {
    let sizes = SIZES.iter().filter(|size| **size <= 10_000);
    let mut costs = Sample::default();
    sizes.filter_map(|size| book.value(SECTION, row, &column(*size))).for_each(|us| costs.add(us));
    (costs.len() > 1).then(|| costs.max() / costs.min())
}

fn flat<C: Crowd>(book: &mut Book, profile: Profile, row: &str) {
    let (passes, part) = if profile == Profile::Quick { (1, 5) } else { (3, 1) };
    let size_max = if profile == Profile::Quick { 1000 } else { C::SIZE_MAX };
    let sizes = SIZES.into_iter().filter(|size| *size <= size_max.min(C::SIZE_MAX));
    let (sizes, too_many): (Vec<usize>, Vec<usize>) =
        sizes.partition(|size| !C::IS_CONNECTED_EACH || may_open(size + 1));
    if !too_many.is_empty() {
        book.miss(format!("{row}, {too_many:?}: `ulimit -n` is too low"));
    }
    let mut costs = vec![Sample::default(); sizes.len()];
    // Measure all sizes in each pass, so that a busy moment of the machine affects all of them
    // alike.
    for _ in 0..passes {
        for (size, cost) in sizes.iter().zip(&mut costs) {
            cost.add(step_us::<C>(*size, C::STEPS / part));
        }
    }
    for (size, cost) in sizes.iter().zip(&costs) {
        book.put(SECTION, row, &column(*size), cost);
    }
}

/// How much a step costs a new server, in microseconds.
fn step_us<C: Crowd>(size: usize, steps: usize) -> f64 {
    let server = server_for(if C::IS_CONNECTED_EACH { size + 1 } else { 10 });
    let mut crowd = C::gather(&server, size);
    crowd.go(steps / 10);
    let cpu = CpuClock::of(&mut server.client());
    let begin_ns = cpu.now_ns();
    crowd.go(steps);
    (cpu.now_ns() - begin_ns) as f64 / 1e3 / steps as f64
}
