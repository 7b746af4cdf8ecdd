//! The options of commands.

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `READ`
    Read,
    /// `WRITE`
    Write,
    /// `MODES mode [mode ...]`, one for each key
    Modes,
    /// `LEASE ms`
    Lease,
    /// `LIMIT n`
    Limit,
    /// `TOKEN t`
    Token,
    /// `DEPTH n`, from 1
    Depth,
    /// `DEPTH n`, from 0
    DownTo,
    /// `ALL`
    All,
    /// `UPGRADE`
    Upgrade,
    /// `WITHTTL`
    WithTtl,
    /// `BLOCK ms`
    Block,
    /// `QUEUE ms`
    Queue,
    /// `MAXQUEUE n`
    MaxQueue,
    /// `ACKS n`
    Acks,
    /// `SESSION`
    Session,
    /// `HOLDERS n`
    Holders,
    /// `WAITERS n`
    Waiters,
    /// `COUNT n`
    Count,
    /// `GET [n]`
    Get,
    /// `LEN`
    Len,
    /// `RESET`
    Reset,
}

impl Word {
    /// As in a command.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Modes => "MODES",
            Self::Lease => "LEASE",
            Self::Limit => "LIMIT",
            Self::Token => "TOKEN",
            Self::Depth | Self::DownTo => "DEPTH",
            Self::All => "ALL",
            Self::Upgrade => "UPGRADE",
            Self::WithTtl => "WITHTTL",
            Self::Block => "BLOCK",
            Self::Queue => "QUEUE",
            Self::MaxQueue => "MAXQUEUE",
            Self::Acks => "ACKS",
            Self::Session => "SESSION",
            Self::Holders => "HOLDERS",
            Self::Waiters => "WAITERS",
            Self::Count => "COUNT",
            Self::Get => "GET",
            Self::Len => "LEN",
            Self::Reset => "RESET",
        }
    }

    /// The name of its value, if it has one.
    pub const fn value(self) -> Option<&'static str> {
        match self {
            Self::Lease | Self::Block | Self::Queue => Some("ms"),
            Self::Token => Some("t"),
            Self::Modes => Some("mode"),
            Self::Limit
            | Self::MaxQueue
            | Self::Acks
            | Self::Depth
            | Self::DownTo
            | Self::Holders
            | Self::Waiters
            | Self::Count
            | Self::Get => Some("n"),
            _ => None,
        }
    }

    /// The version that introduced it, unless that is the command's.
    pub const fn since(self) -> Option<&'static str> {
        match self {
            Self::Limit | Self::MaxQueue | Self::Acks => Some("0.2.0"),
            _ => None,
        }
    }

    /// Whether the two cannot be combined.
    pub(super) const fn excludes(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Read, Self::Write)
                | (Self::Write, Self::Read)
                | (Self::Modes, Self::Read | Self::Write)
                | (Self::Read | Self::Write, Self::Modes)
                | (Self::All, Self::DownTo)
                | (Self::DownTo, Self::All)
                | (Self::Block, Self::Queue)
                | (Self::Queue, Self::Block)
                | (Self::Get | Self::Reset, Self::Len)
                | (Self::Len | Self::Reset, Self::Get)
                | (Self::Get | Self::Len, Self::Reset)
                | (Self::Limit, Self::Write | Self::Upgrade)
                | (Self::Write | Self::Upgrade, Self::Limit)
        )
    }

    /// Whether its value may be left out.
    pub const fn is_value_optional(self) -> bool {
        matches!(self, Self::Get)
    }

    /// Whether it has one value for each key.
    pub const fn is_value_repeated(self) -> bool {
        matches!(self, Self::Modes)
    }

    pub(super) fn usage(self) -> String {
        match self.value() {
            Some(value) if self.is_value_repeated() => {
                format!("{} {value} [{value} ...]", self.word())
            }
            Some(value) if self.is_value_optional() => format!("{} [{value}]", self.word()),
            Some(value) => format!("{} {value}", self.word()),
            None => self.word().into(),
        }
    }
}
