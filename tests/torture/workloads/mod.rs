//! What the actors do with locks: each workload uses them in one way. A step begins without holds,
//! and releases everything at the end; when a reply was lost, it stops, and `Actor::mend` cleans
//! up. To add one: a file here, a line in `ALL`.

mod confirmed;
mod counter;
mod fifo;
mod leases;
mod mutex;
mod nested;
mod orders;
mod permits;
mod readers;
mod resend;
mod sessions;
mod stays;
mod thousand;
mod tickets;
mod told;
mod windows;

use crate::actor::Actor;

pub struct Workload {
    pub name: &'static str,
    /// How many clients there are; an even number.
    pub actors: u32,
    /// How many processes share them, if they are not threads of this one.
    pub processes: u32,
    /// Whether they ask for acknowledgments, so that a replica is needed.
    pub is_acked: bool,
    pub step: fn(&mut Actor),
}

impl Workload {
    const fn of(name: &'static str, actors: u32, step: fn(&mut Actor)) -> Workload {
        Workload { name, actors, processes: 2, is_acked: false, step }
    }

    const fn acked(name: &'static str, actors: u32, step: fn(&mut Actor)) -> Workload {
        Workload { is_acked: true, ..Workload::of(name, actors, step) }
    }

    const fn thousand(name: &'static str, processes: u32, step: fn(&mut Actor)) -> Workload {
        Workload { processes, ..Workload::of(name, thousand::WORKERS, step) }
    }
}

pub const ALL: &[Workload] = &[
    Workload::of("mutex", 8, mutex::step),
    Workload::of("nested", 6, nested::step),
    Workload::of("readers", 8, readers::step),
    Workload::of("permits", 12, permits::step),
    Workload::of("fifo", 8, fifo::step),
    Workload::of("tickets", 8, tickets::step),
    Workload::of("told", 8, told::step),
    Workload::of("sessions", 8, sessions::step),
    Workload::of("stays", 16, stays::step),
    Workload::of("leases", 6, leases::step),
    Workload::of("orders", 6, orders::step),
    Workload::of("counter", 6, counter::step),
    Workload::of("resend", 6, resend::step),
    Workload::of("windows", 4, windows::step),
    Workload::acked("confirmed", 8, confirmed::lock),
    Workload::acked("quota", 12, confirmed::permit),
];

/// For `super::thousand`, not for the faults: permits with a lease, and for as long as a connection
/// lasts.
pub const THOUSAND: [Workload; 2] = [
    Workload::thousand("thousand-lease", 20, thousand::lease),
    Workload::thousand("thousand-session", 20, thousand::session),
];

/// The same work with another semaphore, in processes of another program. A JVM needs more room.
pub const REDISSON: Workload = Workload::thousand("thousand-redisson", 10, |_| ());

pub use thousand::{KEY as POOL, PERMITS as POOL_PERMITS};

/// The workload with this name.
pub fn named(name: &str) -> &'static Workload {
    let mut all = ALL.iter().chain(&THOUSAND);
    all.find(|workload| workload.name == name).unwrap_or_else(|| panic!("no workload {name}"))
}
