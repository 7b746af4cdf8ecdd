//! What `rlock` does: [`run`] a command under a lock, and show a server's locks: [`top`], [`show`].
//! [`snapshot`] asks the servers, [`view`] draws; neither knows of the other's means.

pub mod args;
pub mod run;
pub mod servers;
pub mod show;
pub mod snapshot;
pub mod top;
pub mod view;
