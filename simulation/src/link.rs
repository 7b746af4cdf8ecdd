//! The connection between a replica and its primary.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::history::{Item, Point};
use crate::snapshot::Snapshot;

/// The state of a replica's connection to its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Connected.
    Up,
    /// The link is cut: nothing arrives until it is restored, and the primary has not noticed.
    Cut,
    /// The primary has noticed. When the link is restored, the replica gets what it lacks.
    Offline,
    /// The other end is dead; what has arrived is still to be read.
    Ending,
}

/// An acknowledgment of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ack {
    /// The offset in the stream that the replica has.
    pub offset: u64,
    /// The replica then had this effect and all earlier ones. Only the laws know this, and no
    /// server.
    pub has: Point,
}

/// The link between a replica and its primary, with what is in transit.
pub struct Link {
    /// The primary that the replica follows.
    pub primary: usize,
    /// Whether it is connected.
    pub state: LinkState,
    /// A full sync that arrives before the stream.
    pub sync: Option<Rc<Snapshot>>,
    /// The stream.
    pub queue: VecDeque<Item>,
    /// Acknowledgments on their way to the primary.
    pub acks: VecDeque<Ack>,
    /// The last acknowledgment that the primary got since the replica connected.
    pub heard: Option<Ack>,
    /// When the primary received that acknowledgment, in microseconds of the world.
    pub heard_us: u64,
}

impl Link {
    /// Whether the primary regards the replica as connected and fully loaded.
    pub(crate) fn is_online(&self, primary: usize) -> bool {
        let is_there = matches!(self.state, LinkState::Up | LinkState::Cut);
        self.primary == primary && is_there && self.sync.is_none()
    }

    /// The last acknowledgment of this replica; a replica counts from its first one on.
    pub fn counts(&self, primary: usize) -> Option<Ack> {
        self.heard.filter(|ack| self.is_online(primary) && ack.offset > 0)
    }
}
