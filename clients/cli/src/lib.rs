//! What `rlock` does: [`run`] a command under a lock, show a server's locks on a terminal ([`top`], [`show`]), and
//! [`serve`] them to browsers and Prometheus. [`snapshot`] asks the servers, [`view`] and [`serve`] show; neither knows
//! of the other's means.

pub mod args;
pub mod histogram;
pub mod run;
pub mod serve;
pub mod servers;
pub mod show;
pub mod snapshot;
pub mod top;
pub mod view;
pub mod watch;
