//! What `rlock-top` shows: a server's locks as they are now, and how they changed since the last look.
//! [`snapshot`] asks the server, [`view`] draws; neither knows of the other's means.

pub mod snapshot;
pub mod view;
