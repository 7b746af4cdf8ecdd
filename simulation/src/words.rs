//! The commands that connections send, and their replies.

/// A command as its words.
pub type Words = Vec<Vec<u8>>;

/// A reply in the server's protocol.
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
    /// `+WAITING`: a message follows.
    Waiting,
    /// `+QUEUED`: the command is executed with `EXEC`.
    Queued,
    /// An error line, without its `-`.
    Error(String),
    /// An array of replies.
    Array(Vec<Said>),
}

impl Said {
    /// An error line.
    pub fn error(line: impl Into<String>) -> Self {
        Self::Error(line.into())
    }

    /// Builds a reply from the parts that a server sent: the elements of an array follow its head.
    pub(crate) fn of(parts: Vec<Self>) -> Option<Self> {
        let mut parts = parts.into_iter();
        match parts.next() {
            Some(Self::Array(_)) => Some(Self::Array(parts.collect())),
            first => first,
        }
    }

    /// The first integer in it: a token, perhaps followed by a time to live.
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
    /// A message of a channel to which the connection subscribed.
    Message(Message),
    /// The end of the connection.
    Closed,
}

/// A message of a shard channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The channel.
    pub channel: Vec<u8>,
    /// What it says.
    pub text: Vec<u8>,
}

/// The content of a message, after the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Granted: the token, and the remaining milliseconds.
    Token(i64, u64),
    /// Renewed.
    Renewed,
    /// The holder: its token and its owner; 0 means nobody.
    Holder(i64, Vec<u8>),
    /// The wait ended without a grant; the estimated further wait, if known.
    Nil(i64),
    /// The error line.
    Error(String),
}

impl Message {
    /// The id and the content, if it has the form of a message.
    pub fn parts(&self) -> Option<(&[u8], Outcome)> {
        let at = self.text.iter().position(|byte| *byte == b' ')?;
        let (id, said) = (self.text.get(..at)?, self.text.get(at + 1..)?);
        let is_id = !id.is_empty() && id.len() <= 64 && id.iter().all(u8::is_ascii_graphic);
        Some((id, Outcome::of(said)?)).filter(|_| is_id)
    }
}

impl Outcome {
    fn of(said: &[u8]) -> Option<Self> {
        if let Some(rest) = said.strip_prefix(b"holder ") {
            let at = rest.iter().position(|byte| *byte == b' ');
            let (token, owner) = at.map_or((rest, None), |at| (&rest[..at], rest.get(at + 1..)));
            let token: i64 = str::from_utf8(token).ok()?.parse().ok()?;
            // Nobody has no name.
            let is_form = (token == 0) == owner.is_none();
            return is_form.then(|| Self::Holder(token, owner.unwrap_or_default().to_vec()));
        }
        let said = str::from_utf8(said).ok()?;
        let parts: Vec<&str> = said.split(' ').collect();
        match parts[..] {
            ["token", token, ms] => Some(Self::Token(token.parse().ok()?, ms.parse().ok()?)),
            ["renewed"] => Some(Self::Renewed),
            ["nil", ms] => Some(Self::Nil(ms.parse().ok().filter(|ms| *ms >= -1)?)),
            ["error", code, ..] => {
                let is_word = |code: &str| code.bytes().all(|byte| byte.is_ascii_uppercase());
                let line = said.strip_prefix("error ").filter(|_| is_word(code));
                line.filter(|line| !line.is_empty()).map(|line| Self::Error(line.to_owned()))
            }
            _ => None,
        }
    }

    /// As a reply to the request.
    pub fn said(&self) -> Said {
        match self {
            Self::Token(token, _) => Said::Int(*token),
            Self::Renewed => Said::Int(1),
            Self::Holder(0, _) => Said::Array(vec![Said::Int(0), Said::Nil]),
            Self::Holder(token, owner) => {
                Said::Array(vec![Said::Int(*token), Said::Bytes(owner.clone())])
            }
            Self::Nil(_) => Said::Nil,
            Self::Error(line) => Said::Error(line.clone()),
        }
    }
}
