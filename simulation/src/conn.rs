//! A connection, on the side of its server.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::waiting::Waiting;
use crate::words::Words;

/// A connection, on the side of its server.
#[derive(Debug)]
pub struct Conn {
    /// The database that it selected.
    pub db: i32,
    /// The user as which it is authenticated.
    pub user: Rc<str>,
    /// It is blocked.
    pub waiting: Option<Waiting>,
    /// The shard channels to which it subscribed.
    pub channels: BTreeSet<Vec<u8>>,
    /// The commands that it sent since `MULTI`.
    pub queued: Option<Vec<Words>>,
}

impl Conn {
    pub(crate) fn new(user: &Rc<str>) -> Self {
        let (waiting, channels, queued) = (None, BTreeSet::new(), None);
        Self { db: 0, user: user.clone(), waiting, channels, queued }
    }
}
