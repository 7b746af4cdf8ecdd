//! What the actors do with locks, one way of using them each. A step begins with nothing in hand
//! and lets go in the end; when a reply was lost it stops, and `Actor::mend` makes up for it. To
//! add one: a file here, a line in `ALL`.

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
mod tickets;
mod windows;

use crate::actor::Actor;

pub struct Workload {
    pub name: &'static str,
    /// How many clients; an even number.
    pub actors: u32,
    pub step: fn(&mut Actor),
}

pub const ALL: &[Workload] = &[
    Workload { name: "mutex", actors: 8, step: mutex::step },
    Workload { name: "nested", actors: 6, step: nested::step },
    Workload { name: "readers", actors: 8, step: readers::step },
    Workload { name: "permits", actors: 12, step: permits::step },
    Workload { name: "fifo", actors: 8, step: fifo::step },
    Workload { name: "tickets", actors: 8, step: tickets::step },
    Workload { name: "sessions", actors: 8, step: sessions::step },
    Workload { name: "stays", actors: 16, step: stays::step },
    Workload { name: "leases", actors: 6, step: leases::step },
    Workload { name: "orders", actors: 6, step: orders::step },
    Workload { name: "counter", actors: 6, step: counter::step },
    Workload { name: "resend", actors: 6, step: resend::step },
    Workload { name: "windows", actors: 4, step: windows::step },
];
