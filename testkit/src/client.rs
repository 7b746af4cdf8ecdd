//! A client that sends and reads what redis-rs does, on a socket of its own.

use std::io::Write;

use redis::{ConnectionAddr, ProtocolVersion, RedisError, Value};

use crate::link::Link;
use crate::lock_view::LockView;
use crate::replies::{items, text};
use crate::version::Version;

/// One connection. A command is written as in `redis-cli`: words between spaces.
pub struct Client {
    // Not redis-rs' connection: when a read is interrupted, it drops the reply.
    link: Link,
    parser: redis::Parser,
}

impl Client {
    /// Connects to a server by the URL of its unix socket.
    pub fn connect(url: &str) -> Result<Client, RedisError> {
        let client = redis::Client::open(url)?;
        let info = client.get_connection_info();
        let ConnectionAddr::Unix(socket) = info.addr() else { panic!("{url}: no unix socket") };
        let mut client = Client { link: Link::to(socket)?, parser: redis::Parser::new() };
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let user = settings.username().unwrap_or("default");
            client.query(&[b"AUTH", user.as_bytes(), password.as_bytes()])?;
        }
        if settings.protocol() == ProtocolVersion::RESP3 {
            client.query(&[b"HELLO", b"3"])?;
        }
        Ok(client)
    }

    fn query(&mut self, words: &[&[u8]]) -> Result<Value, RedisError> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        self.link.write_all(&command.get_packed_command())?;
        loop {
            match self.parser.parse_value(&mut self.link)? {
                // Not the reply, but a message that arrived before it.
                Value::Push { .. } => {}
                reply => return reply.extract_error(),
            }
        }
    }

    /// The reply to `line`, which must not be an error.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Value {
        self.attempt(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The reply to words that may hold any bytes, which must not be an error.
    #[track_caller]
    pub fn ask_bytes(&mut self, words: &[&[u8]]) -> Value {
        let reply = self.attempt_bytes(words);
        reply.unwrap_or_else(|error| panic!("{}: {error}", words[0].escape_ascii()))
    }

    /// The reply to `line`, or the text of its error.
    #[track_caller]
    pub fn attempt(&mut self, line: &str) -> Result<Value, String> {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.attempt_bytes(&words)
    }

    /// The reply to words that may hold any bytes, or the text of its error.
    #[track_caller]
    pub fn attempt_bytes(&mut self, words: &[&[u8]]) -> Result<Value, String> {
        self.query(words).map_err(|error| error_line(&error, words[0]))
    }

    /// The replies to all of these, which reach the server in one piece: it executes them one right
    /// after the other, however busy the machine is.
    #[track_caller]
    pub fn all(&mut self, lines: &[&str]) -> Vec<Value> {
        let mut packed = Vec::new();
        for line in lines {
            let mut command = redis::Cmd::new();
            command.arg(line.split_whitespace().collect::<Vec<_>>());
            packed.extend(command.get_packed_command());
        }
        self.link.write_all(&packed).unwrap();
        lines.iter().map(|_| self.receive()).collect()
    }

    /// The text of the error that `line` must get.
    #[track_caller]
    pub fn error(&mut self, line: &str) -> String {
        match self.attempt(line) {
            Err(error) => error,
            Ok(reply) => panic!("{line}: {reply:?}, not an error"),
        }
    }

    /// The text of the error that these words must get.
    #[track_caller]
    pub fn error_bytes(&mut self, words: &[&[u8]]) -> String {
        match self.attempt_bytes(words) {
            Err(error) => error,
            Ok(reply) => panic!("{}: {reply:?}, not an error", words[0].escape_ascii()),
        }
    }

    /// The integer that `line` must get.
    #[track_caller]
    pub fn number(&mut self, line: &str) -> i64 {
        match self.ask(line) {
            Value::Int(number) => number,
            other => panic!("{line}: {other:?}, not an integer"),
        }
    }

    /// The token that `line` must be granted.
    #[track_caller]
    pub fn granted(&mut self, line: &str) -> i64 {
        let token = self.number(line);
        assert!((1..crate::TOKEN_END).contains(&token), "{line}: token {token}");
        token
    }

    /// `line` must be refused with nil.
    #[track_caller]
    pub fn refused(&mut self, line: &str) {
        assert_eq!(self.ask(line), Value::Nil, "{line}");
    }

    /// The text that `line` must get.
    #[track_caller]
    pub fn text(&mut self, line: &str) -> String {
        text(&self.ask(line))
    }

    /// The lock as `RLOCK.INFO` shows it.
    #[track_caller]
    pub fn lock(&mut self, key: &str) -> LockView {
        LockView::read(&self.ask(&format!("RLOCK.INFO {key} HOLDERS 10000")))
    }

    /// Mode and holds in one line: `write: ann write 2, ann read 1`.
    #[track_caller]
    pub fn shows(&mut self, key: &str) -> String {
        self.lock(key).line()
    }

    /// When the server will remove the key, in unix milliseconds; -1 = never, -2 = no key.
    #[track_caller]
    pub fn key_ends_at(&mut self, key: &str) -> i64 {
        self.number(&format!("PEXPIRETIME {key}"))
    }

    /// When the latest hold is over, in unix milliseconds, while nobody waits.
    #[track_caller]
    pub fn deadline(&mut self, key: &str) -> i64 {
        let expires_at = self.key_ends_at(key);
        self.deadline_of(expires_at)
    }

    /// The deadline of a hold while nobody waits, from the time at which its key expires. The
    /// server keeps a key through its expiry millisecond, so the deadline is a millisecond later.
    /// Redis 8 may delete the key within that millisecond, so there it is the same time.
    #[track_caller]
    pub fn deadline_of(&mut self, expires_at: i64) -> i64 {
        let ends_within_its_ms = self.version().is_since([8, 0], [99, 0]);
        expires_at + i64::from(!ends_within_its_ms)
    }

    /// How many milliseconds the key lives, counted to the last one of its latest hold while nobody
    /// waits.
    #[track_caller]
    pub fn lives_ms(&mut self, key: &str) -> i64 {
        let longer_ms = 1 - self.deadline_of(0);
        self.number(&format!("PTTL {key}")) - longer_ms
    }

    /// Which server it is connected to.
    #[track_caller]
    pub fn version(&mut self) -> Version {
        let redis = self.info("server", "redis_version");
        let valkey = self.info("server", "valkey_version");
        let text = valkey.clone().or(redis).unwrap();
        let mut numbers = text.split('.').map(|n| n.parse().unwrap_or_default());
        let (major, minor) = (numbers.next().unwrap(), numbers.next().unwrap());
        match valkey {
            Some(_) => Version::Valkey(major, minor),
            None => Version::Redis(major, minor),
        }
    }

    /// The value of a field of `INFO`.
    #[track_caller]
    pub fn info(&mut self, section: &str, field: &str) -> Option<String> {
        self.try_info(section, field).unwrap_or_else(|error| panic!("INFO {section}: {error}"))
    }

    /// The value of a field of `INFO`, unless the connection breaks.
    pub fn try_info(&mut self, section: &str, field: &str) -> redis::RedisResult<Option<String>> {
        let page = text(&self.query(&[b"INFO", section.as_bytes()])?);
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.map(str::to_owned))
    }

    /// The value of a numeric field of `INFO`, which must be there.
    #[track_caller]
    pub fn info_number(&mut self, section: &str, field: &str) -> i64 {
        let value = self.info(section, field);
        let value = value.unwrap_or_else(|| panic!("INFO {section} has no {field}"));
        value.parse().unwrap()
    }

    /// What the server computes over the value of `key`: equal values have equal digests.
    #[track_caller]
    pub fn digest(&mut self, key: &str) -> String {
        let digests = self.ask(&format!("DEBUG DIGEST-VALUE {key}"));
        text(&items(&digests)[0])
    }

    /// The key's value as `DUMP` gives it.
    #[track_caller]
    pub fn dump(&mut self, key: &str) -> Vec<u8> {
        match self.ask(&format!("DUMP {key}")) {
            Value::BulkString(bytes) => bytes,
            other => panic!("DUMP {key}: {other:?}"),
        }
    }

    /// Sends a command, and does not wait for the reply.
    pub fn send(&mut self, words: &[&str]) {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        self.link.write_all(&command.get_packed_command()).unwrap();
    }

    /// The next reply.
    pub fn receive(&mut self) -> Value {
        self.parser.parse_value(&mut self.link).unwrap()
    }
}

/// The error as the server wrote it, without the leading `-`. Anything else is a dead connection.
#[track_caller]
fn error_line(error: &RedisError, command: &[u8]) -> String {
    match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
        None => panic!("{}: {error}", command.escape_ascii()),
    }
}
