//! What connections say and are told.

/// A command as its words.
pub type Words = Vec<Vec<u8>>;

/// A reply, as the server's protocol has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// An integer.
    Int(i64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nil.
    Nil,
    /// `+OK`.
    Ok,
    /// An error line, without its `-`.
    Error(String),
    /// Several.
    Array(Vec<Said>),
}

impl Said {
    /// An error line.
    pub fn error(line: impl Into<String>) -> Self {
        Self::Error(line.into())
    }

    /// The reply of which a server sent these parts, the elements of an array behind it.
    pub(crate) fn of(parts: Vec<Self>) -> Option<Self> {
        let mut parts = parts.into_iter();
        match parts.next() {
            Some(Self::Array(_)) => Some(Self::Array(parts.collect())),
            first => first,
        }
    }

    /// The first integer in it: a token, with or without a time to live behind it.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Array(items) => items.first()?.number(),
            _ => None,
        }
    }
}

/// A command of words between spaces.
pub fn words(line: &str) -> Words {
    line.split_ascii_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

/// What a server sends on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// A reply.
    Said(Said),
    /// The end of the connection.
    Closed,
}
