//! Errors, and which of them are temporary.

use std::fmt;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};

/// Why a lock is not held, or is no longer held.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// Another owner held the lock until the wait had passed.
    NotAcquired,
    /// The hold ended, or may have ended, before it was released. Others may have worked at the same time.
    Lost,
    /// The wait would never end: release what you hold, then start over.
    Deadlock(RedisError),
    /// A limit of the server is reached (`rlock.max-depth`, `-tells`, `-sessions`).
    TooMany(RedisError),
    /// Too few replicas acknowledged the grant in time, and the grant was revoked.
    NoAcks(RedisError),
    /// Too few replicas were connected during the whole wait.
    NoReplicas(RedisError),
    /// This user may not do that.
    NoPerm(RedisError),
    /// No server was reached, or none could decide, in time.
    Unavailable(RedisError),
    /// The locker was closed, or drained, before the lock was granted, or closed before it was known to be released.
    Closed,
    /// Any other error of the server or the client.
    Redis(RedisError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAcquired => f.write_str("somebody else held the lock until the wait ended"),
            Error::Lost => f.write_str("the hold ended before it was released"),
            Error::Closed => f.write_str("the locker is closed"),
            Error::NoReplicas(error) => write!(f, "too few replicas: {error}"),
            Error::Unavailable(error) => write!(f, "the server is unavailable: {error}"),
            Error::Redis(error) if is_without_module(error) => {
                write!(f, "the server has not loaded the RLOCK module: {error}")
            }
            Error::Deadlock(error)
            | Error::TooMany(error)
            | Error::NoAcks(error)
            | Error::NoPerm(error)
            | Error::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NotAcquired | Error::Lost | Error::Closed => None,
            Error::Deadlock(error)
            | Error::TooMany(error)
            | Error::NoAcks(error)
            | Error::NoReplicas(error)
            | Error::NoPerm(error)
            | Error::Unavailable(error)
            | Error::Redis(error) => Some(error),
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        match error.code() {
            Some("DEADLOCK") => Error::Deadlock(error),
            Some("TOOMANY") => Error::TooMany(error),
            Some("NOACKS") => Error::NoAcks(error),
            Some("NOPERM") => Error::NoPerm(error),
            Some("NOTHELD") => Error::Lost,
            _ => Error::Redis(error),
        }
    }
}

impl Error {
    /// A temporary error lasted too long.
    pub(crate) fn out_of_patience(error: RedisError) -> Error {
        match error.code() {
            Some("NOREPLICAS") => Error::NoReplicas(error),
            _ => Error::Unavailable(error),
        }
    }
}

fn is_without_module(error: &RedisError) -> bool {
    error.code() == Some("ERR")
        && error
            .detail()
            .is_some_and(|text| text.starts_with("unknown command") && text.contains("RLOCK."))
}

/// The error if the module is too old for this request.
pub(crate) fn needs_tell(error: RedisError) -> RedisError {
    let is_unknown = error.code() == Some("ERR")
        && error.detail().is_some_and(|text| text.contains("syntax error at 'TELL'"));
    if !is_unknown {
        return error;
    }
    let why = "the RLOCK module of this server is too old for this package: it does not know TELL";
    redis::make_extension_error("ERR".to_owned(), Some(why.to_owned()))
}

/// Whether no retry of connecting can succeed, because of the program's settings or of the other
/// side: an untrusted certificate, a server that speaks another protocol.
fn is_permanent(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::AuthenticationFailed
        | ErrorKind::Parse
        | ErrorKind::Client
        | ErrorKind::RESP3NotSupported => true,
        // A certificate that TLS refuses, or a reply that is not TLS at all.
        ErrorKind::Io => io_kind(error) == Some(std::io::ErrorKind::InvalidData),
        _ => false,
    }
}

fn io_kind(error: &RedisError) -> Option<std::io::ErrorKind> {
    type Shared = Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(error)?;
    let inner = source.downcast_ref::<Shared>().and_then(|shared| shared.downcast_ref());
    inner.or_else(|| source.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
}

/// Whether there was no answer: the request may have been executed.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    error.code().is_none()
}

/// Whether there was no server to send it to.
pub(crate) fn is_unsent(error: &RedisError) -> bool {
    error.is_connection_refusal()
}

/// Whether a retry can help: there was no answer, or the error belongs to a failover, a resharding or a start.
pub(crate) fn is_passing(error: &RedisError) -> bool {
    match error.code() {
        None => error.kind() != ErrorKind::InvalidClientConfig,
        Some(
            "UNBLOCKED" | "READONLY" | "LOADING" | "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN"
            | "NOREPLICAS" | "MASTERDOWN",
        ) => true,
        // Observers get the latter from a demoted primary.
        Some(_) => error.detail().is_some_and(|text| {
            text.contains("max number of clients") || text.contains("cannot block on a replica")
        }),
    }
}

/// Whether a replica sent this: if only one server is named, it will not become a primary.
pub(crate) fn is_replica(error: &RedisError) -> bool {
    error.code() == Some("READONLY")
        || error.detail().is_some_and(|text| text.contains("cannot block on a replica"))
}

/// Whether the server that sent this error is not a primary, at least for now: another server may be.
pub(crate) fn is_no_primary(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "UNBLOCKED" | "MASTERDOWN" | "LOADING"))
}

pub(crate) fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// The connection has ended.
pub(crate) fn broken() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}

/// The error for a request that could not be sent, with the reason.
pub(crate) fn unreached(error: RedisError) -> RedisError {
    if error.code().is_some() || error.kind() == ErrorKind::InvalidClientConfig {
        return error; // it was answered, or cannot be asked
    }
    if is_permanent(&error) {
        let text = match error.kind() {
            ErrorKind::Parse => "what answers there does not speak the protocol of Redis".into(),
            _ => error.to_string(),
        };
        return (ErrorKind::InvalidClientConfig, "the server cannot be used", text).into();
    }
    std::io::Error::new(std::io::ErrorKind::ConnectionRefused, error.to_string()).into()
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn a_module_that_does_not_know_tell_is_too_old() {
        let said = |line: &[u8]| match redis::parse_redis_value(line).and_then(Value::extract_error)
        {
            Ok(_) => String::new(),
            Err(error) => needs_tell(error).to_string(),
        };
        let old = said(
            b"-ERR syntax error at 'TELL': the syntax is RLOCK.AWAIT key token [BLOCK ms]\r\n",
        );
        assert!(old.contains("too old for this package: it does not know TELL"), "{old}");
        let other = said(b"-ERR TELL needs BLOCK ms\r\n");
        assert!(!other.contains("too old"), "{other}");
    }

    #[test]
    fn only_what_no_later_try_can_change_is_permanent() {
        let io = |kind: std::io::ErrorKind| RedisError::from(std::io::Error::from(kind));
        assert!(is_permanent(&io(std::io::ErrorKind::InvalidData)));
        for kind in [
            std::io::ErrorKind::ConnectionRefused,
            std::io::ErrorKind::ConnectionReset,
            std::io::ErrorKind::UnexpectedEof,
            std::io::ErrorKind::TimedOut,
            std::io::ErrorKind::NotFound,
        ] {
            assert!(!is_permanent(&io(kind)), "{kind}");
            assert!(is_unsent(&unreached(io(kind))), "{kind}");
        }
        assert!(!is_permanent(&(ErrorKind::Io, "no server serves the slot of this key").into()));
    }
}
