//! One thing that happens in a simulated world. A step contains all choices, so the same steps lead
//! to the same world, and any step may be left out of a story.

use std::fmt;

use crate::command::Command;

/// A server, by its number.
pub type Node = u8;
/// A client, by its number.
pub type Who = u8;

/// The next step. A step that is not possible does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// This many microseconds pass.
    Pass(u32),
    /// A client connects to a server.
    Connect(Who, Node),
    /// A client sends a command, whether or not it has the reply to the last one.
    Send(Who, Command),
    /// A client sends a command with `TELL`: the message goes to the channel with this number.
    Tell(Who, Command, u8),
    /// A server reads a client's next command.
    Read(Who),
    /// A client reads the next reply.
    Hear(Who),
    /// A client hangs up.
    HangUp(Who),
    /// A server reads a command on a connection that its client has closed.
    ReadLate(Who),
    /// The server notices that a client closed its connection.
    Notice(Who),
    /// The server cuts a client off.
    CutOff(Who),
    /// `CLIENT UNBLOCK`, with an error or without.
    Unblock(Who, bool),
    /// A client's user loses its permissions, or regains them.
    Allow(Who, bool),
    /// A client's user loses the permission to publish, or regains it.
    Channels(Who, bool),
    /// An iteration of a server's loop, with at most this many tasks.
    Turn(Node, u8),
    /// A server looks for expired keys.
    Expire(Node),
    /// A server evicts this key.
    Evict(Node, u8),
    /// `CLIENT PAUSE`, for this many milliseconds.
    Pause(Node, u32),
    /// A server's disk fails, or works again.
    Disk(Node, bool),
    /// `min-replicas-to-write`
    MinReplicas(Node, u8),
    /// A server's clock is set forward or back by this many milliseconds.
    Clock(Node, i32),
    /// A replica receives the next command of the stream.
    Deliver(Node),
    /// A replica acknowledges.
    Ack(Node),
    /// A primary reads a replica's next acknowledgment.
    HearAck(Node),
    /// The link of a replica is cut.
    Cut(Node),
    /// A primary closes the link of a replica.
    Offline(Node),
    /// The link of a replica is restored.
    Heal(Node),
    /// A server follows another one, beginning with a full sync.
    Follow(Node, Node),
    /// A replica becomes a primary.
    Promote(Node),
    /// A server saves its data.
    Save(Node),
    /// A server dies; of what it sent to each replica, this many commands arrive.
    Kill(Node, u8),
    /// A server starts again with what it saved.
    Start(Node),
}

impl fmt::Display for Step {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass(us) => write!(to, "{}.{:03} ms pass", us / 1000, us % 1000),
            Self::Connect(who, node) => write!(to, "client {who} connects to server {node}"),
            Self::Send(who, command) => write!(to, "client {who} sends {command}"),
            Self::Tell(who, command, channel) => {
                write!(to, "client {who} sends {command} TELL c{channel}")
            }
            Self::Read(who) => write!(to, "its server carries out the next of client {who}"),
            Self::Hear(who) => write!(to, "client {who} reads a reply"),
            Self::HangUp(who) => write!(to, "client {who} hangs up"),
            Self::ReadLate(who) => {
                write!(to, "a server reads on where client {who} has hung up")
            }
            Self::Notice(who) => write!(to, "the server notices that client {who} hung up"),
            Self::CutOff(who) => write!(to, "the server cuts client {who} off"),
            Self::Unblock(who, true) => write!(to, "CLIENT UNBLOCK client {who} ERROR"),
            Self::Unblock(who, false) => write!(to, "CLIENT UNBLOCK client {who}"),
            Self::Allow(who, true) => write!(to, "the user of client {who} may again"),
            Self::Allow(who, false) => write!(to, "the user of client {who} loses its rights"),
            Self::Channels(who, true) => write!(to, "the user of client {who} may publish"),
            Self::Channels(who, false) => write!(to, "the user of client {who} may not publish"),
            Self::Turn(node, tasks) => {
                write!(to, "server {node} goes through its loop (at most {tasks} tasks)")
            }
            Self::Expire(node) => write!(to, "server {node} looks for expired keys"),
            Self::Evict(node, key) => write!(to, "server {node} evicts k{key}"),
            Self::Pause(node, ms) => write!(to, "server {node}: CLIENT PAUSE {ms} WRITE"),
            Self::Disk(node, true) => write!(to, "server {node}: the disk fails"),
            Self::Disk(node, false) => write!(to, "server {node}: the disk works again"),
            Self::MinReplicas(node, n) => write!(to, "server {node}: min-replicas-to-write {n}"),
            Self::Clock(node, ms) => write!(to, "server {node}: its clock is stepped by {ms} ms"),
            Self::Deliver(node) => write!(to, "replica {node} gets the next of the stream"),
            Self::Ack(node) => write!(to, "replica {node} acknowledges"),
            Self::HearAck(node) => write!(to, "the primary reads what replica {node} acknowledged"),
            Self::Offline(node) => write!(to, "replica {node}: its primary closes the link"),
            Self::Cut(node) => write!(to, "replica {node}: its link is cut"),
            Self::Heal(node) => write!(to, "replica {node}: its link is there again"),
            Self::Follow(node, primary) => write!(to, "server {node} follows server {primary}"),
            Self::Promote(node) => write!(to, "server {node} is promoted"),
            Self::Save(node) => write!(to, "server {node} saves its data"),
            Self::Kill(node, kept) => {
                write!(to, "server {node} dies; {kept} of what it sent to each replica arrive")
            }
            Self::Start(node) => write!(to, "server {node} starts again"),
        }
    }
}
