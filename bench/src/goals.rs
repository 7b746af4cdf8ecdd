//! The goals: each is a figure of the run and its limit.

use crate::book::{Book, column, short};
use crate::flatness;
use crate::{
    contended, hand_off, instructions, lateness, limits, memory, pair, rivals, sessions, tell,
    tell_acks, tell_crowd,
};

/// A goal.
pub struct Goal {
    pub work: &'static str,
    /// What the figure is compared with, or what limits it.
    pub rival: &'static str,
    limit: Limit,
    figure: fn(&Book) -> Option<f64>,
}

#[derive(Clone, Copy)]
enum Limit {
    /// At most this many times the rival's.
    TimesAtMost(f64),
    /// At most this many times the rival's; the second number is for Valkey 9.
    TimesAtMostOn(f64, f64),
    /// At least this many times the rival's.
    TimesAtLeast(f64),
    /// At most this much, in this unit.
    AtMost(f64, &'static str),
    /// At least this much.
    AtLeast(f64),
    /// The figure is shown, but not judged.
    None,
}

impl Goal {
    /// The limit on the server that `book` is about.
    pub fn limit(&self, book: &Book) -> String {
        match self.limit {
            Limit::TimesAtMost(limit) => format!("<= {limit:.2}x"),
            Limit::TimesAtMostOn(..) => format!("<= {:.2}x", self.most(book)),
            Limit::TimesAtLeast(limit) => format!(">= {limit}x"),
            Limit::AtMost(limit, unit) => format!("<= {limit} {unit}"),
            Limit::AtLeast(limit) => format!(">= {}", short(limit)),
            Limit::None => "shown".to_owned(),
        }
    }

    /// The figure of this run, and whether it reaches the goal; `None` if it was not measured.
    pub fn figure(&self, book: &Book) -> Option<(String, bool)> {
        let figure = (self.figure)(book)?;
        Some(match self.limit {
            Limit::TimesAtMost(limit) => (format!("{figure:.2}x"), figure <= limit),
            Limit::TimesAtMostOn(..) => (format!("{figure:.2}x"), figure <= self.most(book)),
            Limit::TimesAtLeast(limit) => (format!("{figure:.1}x"), figure >= limit),
            Limit::AtMost(limit, unit) => (format!("{} {unit}", short(figure)), figure <= limit),
            Limit::AtLeast(limit) if figure < limit && book.about("profile") == "quick" => {
                (format!("{} (quick profile)", short(figure)), true)
            }
            Limit::AtLeast(limit) => (short(figure), figure >= limit),
            Limit::None => (format!("{figure:.2}x"), true),
        })
    }

    fn most(&self, book: &Book) -> f64 {
        let is_valkey_9 = book.about("server").starts_with("Valkey 9");
        match self.limit {
            Limit::TimesAtMostOn(_, on_valkey_9) if is_valkey_9 => on_valkey_9,
            Limit::TimesAtMostOn(limit, _) => limit,
            _ => 0.0,
        }
    }
}

/// The instructions of RLOCK's pair, as a multiple of a rival's.
fn instructions_beside(book: &Book, rival: &str) -> Option<f64> {
    instructions_of(book, rivals::RLOCK, rival)
}

/// The instructions of one row, as a multiple of another row's.
fn instructions_of(book: &Book, row: &str, rival: &str) -> Option<f64> {
    book.ratio(instructions::SECTION, instructions::INSTRUCTIONS, row, rival)
}

/// All goals, in the order of their table.
pub const ALL: &[Goal] = &[
    Goal {
        work: "acquire + release of a free lock, as the client packages send them, instructions",
        rival: instructions::CLIENTS_FLOOR,
        limit: Limit::TimesAtMost(1.15),
        figure: |book| instructions_of(book, instructions::CLIENTS, instructions::CLIENTS_FLOOR),
    },
    Goal {
        work: "the same",
        rival: rivals::SET_SCRIPT,
        limit: Limit::None,
        figure: |book| instructions_of(book, instructions::CLIENTS, rivals::SET_SCRIPT),
    },
    Goal {
        work: "with key and owner only, instructions",
        rival: rivals::FLOOR,
        limit: Limit::TimesAtMost(1.05),
        figure: |book| instructions_beside(book, rivals::FLOOR),
    },
    Goal {
        work: "the same",
        rival: rivals::SET_DEL,
        limit: Limit::TimesAtMostOn(1.33, 1.25),
        figure: |book| instructions_beside(book, rivals::SET_DEL),
    },
    Goal {
        work: "the same, fewer instructions, by a factor of",
        rival: rivals::SET_SCRIPT,
        limit: Limit::TimesAtLeast(1.8),
        figure: |book| Some(1.0 / instructions_beside(book, rivals::SET_SCRIPT)?),
    },
    Goal {
        work: "the same, fewer instructions, by a factor of",
        rival: rivals::REDISSON,
        limit: Limit::TimesAtLeast(4.3),
        figure: |book| Some(1.0 / instructions_beside(book, rivals::REDISSON)?),
    },
    Goal {
        work: "the same, fewer instructions, by a factor of",
        rival: rivals::REDISSON_NOW,
        limit: Limit::TimesAtLeast(6.0),
        figure: |book| Some(1.0 / instructions_beside(book, rivals::REDISSON_NOW)?),
    },
    Goal {
        work: "the same, instructions",
        rival: rivals::SET_DELIFEQ,
        limit: Limit::TimesAtMost(1.14),
        figure: |book| instructions_beside(book, rivals::SET_DELIFEQ),
    },
    Goal {
        work: "the same, server CPU, no persistence, 50 in the pipeline",
        rival: rivals::SET_DEL,
        limit: Limit::TimesAtMost(1.4),
        figure: |book| cpu_beside(book, pair::NO_PERSISTENCE, rivals::SET_DEL),
    },
    Goal {
        work: "the same, less server CPU, by a factor of",
        rival: rivals::SET_SCRIPT,
        limit: Limit::TimesAtLeast(1.6),
        figure: |book| Some(1.0 / cpu_beside(book, pair::NO_PERSISTENCE, rivals::SET_SCRIPT)?),
    },
    Goal {
        work: "the same, server CPU, append-only file every second, 50 in the pipeline",
        rival: rivals::SET_DEL,
        limit: Limit::TimesAtMost(1.28),
        figure: |book| cpu_beside(book, pair::EVERY_SECOND, rivals::SET_DEL),
    },
    Goal {
        work: "hand-off, instructions",
        rival: instructions::PUBLISH_AND_RETRY,
        limit: Limit::TimesAtMost(1.0),
        figure: |book| {
            instructions_of(book, instructions::HAND_OFF, instructions::PUBLISH_AND_RETRY)
        },
    },
    Goal {
        work: "hand-off, release sent to the next owner's reply, p50",
        rival: hand_off::RETRY,
        limit: Limit::None,
        figure: |book| hand_off_beside(book, hand_off::RETRY),
    },
    Goal {
        work: "the same",
        rival: hand_off::PING,
        limit: Limit::TimesAtMost(1.2),
        figure: |book| hand_off_beside(book, hand_off::PING),
    },
    Goal {
        work: "grants per second with 10 clients, more by a factor of",
        rival: contended::REDISSON,
        limit: Limit::None,
        figure: |book| grants_beside(book, 10),
    },
    Goal {
        work: "the same, 100 clients",
        rival: contended::REDISSON,
        limit: Limit::None,
        figure: |book| grants_beside(book, 100),
    },
    Goal {
        work: "the same, 1000 clients",
        rival: contended::REDISSON,
        limit: Limit::None,
        figure: |book| grants_beside(book, 1000),
    },
    Goal {
        work: "grants per second, 10 clients compared with 1000",
        rival: "itself",
        limit: Limit::TimesAtMost(1.2),
        figure: |book| Some(grants_of(book, 10)? / grants_of(book, 1000)?),
    },
    Goal {
        work: "first come, first served: difference between best- and worst-served of 100 clients",
        rival: "1, plus grants in flight",
        limit: Limit::AtMost(2.0, "grants"),
        figure: |book| book.value(contended::DIFFERENCE, contended::RLOCK, &column(100)),
    },
    Goal {
        work: "deadlock search of a command about to block, 1000 waiters",
        rival: "no search",
        limit: Limit::None,
        figure: |book| {
            let of = |row| book.value(flatness::SECTION, row, &column(1000));
            Some(of(flatness::SEARCH)? / of(flatness::HAND_OFF)?)
        },
    },
    flat("server CPU of a hand-off, 1 to 10 000 waiters", |book| {
        flatness::spread(book, flatness::HAND_OFF)
    }),
    flat("server CPU of a poll, 1 to 10 000 tickets", |book| {
        flatness::spread(book, flatness::POLL)
    }),
    flat("server CPU of a READ pair, 1 to 10 000 readers", |book| {
        flatness::spread(book, flatness::READ)
    }),
    flat("server CPU of re-entry, 1 to 10 000 levels", |book| {
        flatness::spread(book, flatness::REENTRY)
    }),
    Goal {
        work: "server CPU of RENEW, 1 to 10 000 held locks: growth",
        rival: flatness::PEXPIRE,
        limit: Limit::TimesAtMost(1.05),
        figure: |book| {
            let ours = flatness::spread(book, flatness::RENEW)?;
            Some(ours / flatness::spread(book, flatness::PEXPIRE)?)
        },
    },
    Goal {
        work: "lease end to the next grant, p50 (never early)",
        rival: "the server's own timer: 600 µs",
        limit: Limit::AtMost(1000.0, "µs"),
        figure: |book| book.value(lateness::SECTION, lateness::QUIET, "p50"),
    },
    Goal {
        work: "the same, p99",
        rival: "the server's own timer: 1200 µs",
        limit: Limit::AtMost(2000.0, "µs"),
        figure: |book| book.value(lateness::SECTION, lateness::QUIET, "p99"),
    },
    Goal {
        work: "kill of the holder's process (SESSION) to the next grant, p99",
        rival: "one loop iteration of the server",
        limit: Limit::AtMost(1000.0, "µs"),
        figure: |book| book.value(sessions::SECTION, sessions::KILLED, "p99"),
    },
    Goal {
        work: "extra bytes per held lock",
        rival: memory::SET,
        limit: Limit::AtMost(32.0, "bytes"),
        figure: |book| {
            let of = |row| book.value(memory::HELD, row, memory::EACH);
            Some(of(memory::LOCK)? - of(memory::SET)?)
        },
    },
    Goal {
        work: "bytes per ticket",
        rival: "",
        limit: Limit::AtMost(300.0, "bytes"),
        figure: |book| book.value(memory::HELD, limits::TICKET, memory::EACH),
    },
    Goal {
        work: "acquire on a growing, cold keyspace, server CPU",
        rival: memory::SET,
        limit: Limit::TimesAtMost(1.16),
        figure: |book| book.ratio(memory::COLD, memory::COLD_ALL, memory::LOCK, memory::SET),
    },
    at_least("held locks at once", 1e6, |book| {
        book.value(memory::MANY, memory::LOCK, memory::HOW_MANY)
    }),
    at_least("blocked connections, served in order", 1e4, |book| {
        book.value(limits::SECTION, limits::BLOCKED, limits::SERVED)
    }),
    at_least("tickets, served in order", 1e5, |book| {
        book.value(limits::SECTION, limits::TICKETS, limits::SERVED)
    }),
    Goal {
        work: "hand-off with TELL, release sent to the message, p50",
        rival: tell::PING,
        limit: Limit::TimesAtMost(1.2),
        figure: |book| tell_beside(book, tell::PING),
    },
    Goal {
        work: "the same",
        rival: tell::BLOCK,
        limit: Limit::TimesAtMost(1.0),
        figure: |book| tell_beside(book, tell::BLOCK),
    },
    Goal {
        work: "grants per second that one replica confirms, ACKS 1 TELL, 1 connection",
        rival: tell_acks::WAIT,
        limit: Limit::TimesAtLeast(1.0),
        figure: |book| confirmed_beside(book, 1),
    },
    Goal {
        work: "the same, 50 connections",
        rival: tell_acks::WAIT,
        limit: Limit::TimesAtLeast(1.0),
        figure: |book| confirmed_beside(book, 50),
    },
    Goal {
        work: "the same, 500 connections",
        rival: tell_acks::WAIT,
        limit: Limit::TimesAtLeast(1.0),
        figure: |book| confirmed_beside(book, 500),
    },
    Goal {
        work: "bytes per request that waits with TELL, names of 39 bytes",
        rival: "",
        limit: Limit::AtMost(350.0, "bytes"),
        figure: |book| book.value(tell_crowd::SECTION, tell_crowd::ROW, tell_crowd::BYTES),
    },
    Goal {
        work: "memory of 100 000 such requests",
        rival: "",
        limit: Limit::AtMost(40.0, "MB"),
        figure: |book| book.value(tell_crowd::SECTION, tell_crowd::ROW, tell_crowd::MEGABYTES),
    },
    flat("server CPU of a hand-off with TELL, 1000 to 100 000 requests", |book| {
        let of = |size| book.value(tell_crowd::CPU, tell_crowd::HAND_OFF, &column(size));
        let all: Option<Vec<f64>> = tell_crowd::SIZES.into_iter().map(of).collect();
        let all = all?;
        Some(all.iter().copied().fold(0.0, f64::max) / all.iter().copied().fold(f64::MAX, f64::min))
    }),
    at_least("sessions, kept past their leases", 1e4, |book| {
        book.value(limits::SECTION, limits::SESSIONS, limits::KEPT)
    }),
];

const fn flat(work: &'static str, figure: fn(&Book) -> Option<f64>) -> Goal {
    Goal { work, rival: "itself", limit: Limit::TimesAtMost(1.2), figure }
}

const fn at_least(work: &'static str, count: f64, figure: fn(&Book) -> Option<f64>) -> Goal {
    Goal { work, rival: "", limit: Limit::AtLeast(count), figure }
}

fn cpu_beside(book: &Book, section: &str, rival: &str) -> Option<f64> {
    book.ratio(section, &pair::cpu(50), rivals::RLOCK, rival)
}

fn hand_off_beside(book: &Book, rival: &str) -> Option<f64> {
    book.ratio(hand_off::SECTION, "p50", hand_off::HAND_OFF, rival)
}

fn tell_beside(book: &Book, rival: &str) -> Option<f64> {
    book.ratio(tell::SECTION, "p50", tell::TELL, rival)
}

fn confirmed_beside(book: &Book, connections: usize) -> Option<f64> {
    book.ratio(tell_acks::GRANTS, &column(connections), tell_acks::TELL, tell_acks::WAIT)
}

/// RLOCK's grants per second with the default settings.
fn grants_of(book: &Book, clients: usize) -> Option<f64> {
    book.value(contended::GRANTS, contended::RLOCK_SEARCHING, &column(clients))
}

fn grants_beside(book: &Book, clients: usize) -> Option<f64> {
    let rivals = book.value(contended::GRANTS, contended::REDISSON, &column(clients));
    Some(grants_of(book, clients)? / rivals?)
}
