//! The connection between a replica and its primary, as it is now.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::history::{Item, Point};
use crate::snapshot::Snapshot;

/// How things stand between a replica and its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Connected.
    Up,
    /// The link is cut: nothing arrives until it is restored, and the primary does not know.
    Cut,
    /// The primary knows. When it is there again, the replica gets what it lacks.
    Offline,
    /// The other end is dead; what arrived is still to be read.
    Ending,
}

/// An acknowledgment of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ack {
    /// It has so much of the stream.
    pub offset: u64,
    /// At that time the replica had this effect and all earlier ones. Only the laws know this, and
    /// no server.
    pub has: Point,
}

/// What is on its way between a replica and its primary.
pub struct Link {
    /// The primary that it follows.
    pub primary: usize,
    /// How things stand.
    pub state: LinkState,
    /// A full sync comes first.
    pub sync: Option<Rc<Snapshot>>,
    /// The stream.
    pub queue: VecDeque<Item>,
    /// Acknowledgments on their way to the primary.
    pub acks: VecDeque<Ack>,
    /// The last one that the primary heard, since the replica connected.
    pub heard: Option<Ack>,
    /// When the primary received that acknowledgment, in microseconds of the world.
    pub heard_us: u64,
}

impl Link {
    /// The primary takes the replica for connected and fully loaded.
    pub(crate) fn is_online(&self, primary: usize) -> bool {
        let is_there = matches!(self.state, LinkState::Up | LinkState::Cut);
        self.primary == primary && is_there && self.sync.is_none()
    }

    /// The last acknowledgment of this replica, which counts from its first one on.
    pub fn counts(&self, primary: usize) -> Option<Ack> {
        self.heard.filter(|ack| self.is_online(primary) && ack.offset > 0)
    }
}
