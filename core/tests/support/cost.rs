//! What an operation costs: allocations, which are the same on every machine, and the processor's
//! time.

use std::time::Duration;

use allocation_counter::measure;
use rustix::time::{ClockId, clock_gettime};

/// The processor time of this thread, which excludes that of other processes.
pub struct Stopwatch(Duration);

impl Stopwatch {
    pub fn start() -> Self {
        Self(Self::now())
    }

    pub fn elapsed(&self) -> Duration {
        Self::now() - self.0
    }

    fn now() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
    }
}

/// What this thread allocated on the heap; freed memory is not subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub allocations: u64,
    pub bytes: u64,
}

pub fn taken(work: impl FnOnce()) -> Taken {
    let info = measure(work);
    Taken { allocations: info.count_total, bytes: info.bytes_total }
}

pub fn takes_as_long_beside_ten_thousand(time_beside: impl Fn(u64) -> Duration) {
    // Another process may have the processor at the moment: the shorter of two times counts.
    let best = |others| time_beside(others).min(time_beside(others));
    let (few, many) = (best(10), best(10_000));
    println!("beside 10: {few:?}, beside 10 000: {many:?}");
    assert!(many < few * 5 + Duration::from_millis(50), "{few:?} became {many:?}");
}
