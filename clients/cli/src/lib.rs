//! What `rlock` does: [`run`] a command under a lock, show a server's locks on a terminal ([`top`],
//! [`show`], [`list`]), and [`serve`] them to browsers and Prometheus. [`snapshot`] asks the
//! servers; [`view`] and [`serve`] show what it found, independently of each other.

pub mod args;
pub mod help;
pub mod histogram;
pub mod jobs;
pub mod list;
pub mod mcp;
mod place;
pub mod run;
pub mod scan;
pub mod serve;
pub mod servers;
pub mod show;
mod signals;
pub mod snapshot;
pub mod take;
mod tale;
pub mod top;
pub mod view;
pub mod watch;

use std::fmt::Display;
use std::io::Write;

/// Prints what is wrong to standard error. The program continues even if nobody reads that.
pub fn complain(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "rlock: {what}");
}
