//! A client that sends a command on a connection of its own, and need not wait for the reply.

use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use redis::{PushKind, Value};

use crate::link::{Link, REPLY_MS_MAX};
use crate::{Client, Server, TOKEN_END, integer, items, text, until};

/// A connection whose replies are read one by one, when the test wants them.
pub struct Waiter {
    link: Link,
    received: Vec<u8>,
    id: i64,
}

impl Waiter {
    /// A new connection, which the server has noticed.
    #[track_caller]
    pub fn connect(server: &Server) -> Waiter {
        Waiter::of(server, "")
    }

    /// A new connection as another user, with the password `secret`.
    #[track_caller]
    pub fn connect_as(server: &Server, user: &str) -> Waiter {
        Waiter::of(server, user)
    }

    fn of(server: &Server, user: &str) -> Waiter {
        let link = Link::to(&server.socket()).unwrap();
        let mut waiter = Waiter { link, received: Vec::new(), id: 0 };
        if !user.is_empty() {
            waiter.ask(&format!("AUTH {user} secret"));
        }
        waiter.id = waiter.number("CLIENT ID");
        waiter
    }

    /// A new connection to a server that may be dead, by its unix socket.
    pub fn may_connect(socket: &Path) -> io::Result<Waiter> {
        Ok(Waiter { link: Link::to(socket)?, received: Vec::new(), id: 0 })
    }

    /// A new connection that has sent `line`, and is blocked by it.
    #[track_caller]
    pub fn parked(server: &Server, line: &str) -> Waiter {
        let mut waiter = Waiter::connect(server);
        waiter.park(server, line);
        waiter
    }

    /// Sends `line`, which must block this connection.
    #[track_caller]
    pub fn park(&mut self, server: &Server, line: &str) {
        self.say(line);
        let mut watcher = server.client();
        until(5_000, || {
            let is_parked = is_blocked(&mut watcher, self.id);
            assert!(is_parked || !self.has_reply(), "{line}: {:?}", self.reply());
            is_parked
        });
    }

    /// The server's number for this connection.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Sends `line`, and does not wait for the reply.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        self.say_all(&[line]);
    }

    /// Sends all of these at once, so that the server reads them in one iteration of its loop.
    #[track_caller]
    pub fn say_all(&mut self, lines: &[&str]) {
        assert!(self.may_say_all(lines), "it is closed");
    }

    /// Sends all of these at once if the connection is not closed. Returns whether it was open.
    pub fn may_say_all(&mut self, lines: &[&str]) -> bool {
        let mut bytes = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
        }
        self.link.write_all(&bytes).is_ok()
    }

    /// The next reply, or the text of the next error.
    #[track_caller]
    pub fn reply(&mut self) -> Result<Value, String> {
        loop {
            if let Some((reply, len)) = parsed(&self.received) {
                self.received.drain(..len);
                return reply;
            }
            match self.read_some() {
                Ok(0) => panic!("closed without a reply"),
                Ok(_) => {}
                Err(error) => panic!("no reply after {REPLY_MS_MAX} ms: {error}"),
            }
        }
    }

    /// The next reply, or the text of the next error, if one arrives within this many milliseconds.
    /// An error is returned if the connection ends.
    pub fn may_reply(&mut self, ms: u64) -> io::Result<Option<Result<Value, String>>> {
        loop {
            if let Some((reply, len)) = parsed(&self.received) {
                self.received.drain(..len);
                return Ok(Some(reply));
            }
            self.link.set_patience(ms)?;
            match self.read_some() {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(ErrorKind::WouldBlock) => return Ok(None),
                Err(kind) => return Err(kind.into()),
            }
        }
    }

    /// The next reply, which must not be an error.
    #[track_caller]
    pub fn answer(&mut self) -> Value {
        self.reply().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The reply to `line`, which must not be an error.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Value {
        self.say(line);
        self.reply().unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The integer that `line` must get.
    #[track_caller]
    pub fn number(&mut self, line: &str) -> i64 {
        integer(&self.ask(line))
    }

    /// Asserts that it got exactly one reply, a grant. Returns the token.
    #[track_caller]
    pub fn granted(&mut self) -> i64 {
        let token = integer(&self.answer());
        assert!((1..TOKEN_END).contains(&token), "token {token}");
        self.expect_silence();
        token
    }

    /// Asserts that it got exactly one reply, a grant with WITHTTL. Returns the token and the
    /// remaining time.
    #[track_caller]
    pub fn granted_with_ttl(&mut self) -> (i64, i64) {
        let reply = self.answer();
        self.expect_silence();
        (integer(&items(&reply)[0]), integer(&items(&reply)[1]))
    }

    /// Asserts that it got exactly one reply, nil.
    #[track_caller]
    pub fn refused(&mut self) {
        assert_eq!(self.answer(), Value::Nil);
        self.expect_silence();
    }

    /// Asserts that it got exactly one reply, nil with WITHTTL. Returns the milliseconds in it.
    #[track_caller]
    pub fn refused_with_ttl(&mut self) -> i64 {
        let reply = self.answer();
        assert_eq!(items(&reply)[0], Value::Nil);
        self.expect_silence();
        integer(&items(&reply)[1])
    }

    /// Asserts that it got exactly one reply, an error. Returns its text.
    #[track_caller]
    pub fn error(&mut self) -> String {
        match self.reply() {
            Err(error) => {
                self.expect_silence();
                error
            }
            Ok(reply) => panic!("{reply:?}, not an error"),
        }
    }

    /// Asserts that all replies have arrived: the next one answers the next command.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        let mark = Value::BulkString(b"and-no-more".to_vec());
        assert_eq!(self.ask("ECHO and-no-more"), mark);
    }

    /// Whether a reply, or a part of one, has arrived.
    pub fn has_reply(&mut self) -> bool {
        self.link.set_nonblocking(true).unwrap();
        while self.received.is_empty() && self.read_some().is_ok_and(|count| count > 0) {}
        self.link.set_nonblocking(false).unwrap();
        !self.received.is_empty()
    }

    /// Asserts that it is still blocked, and has no reply.
    #[track_caller]
    pub fn still_waits(&mut self, watcher: &mut Client) {
        assert!(is_blocked(watcher, self.id), "it is not parked");
        assert!(!self.has_reply(), "it was told {:?}", self.reply());
    }

    /// The replies that the server sends before it closes the connection, which it must do.
    #[track_caller]
    pub fn last_words(&mut self) -> Vec<Result<Value, String>> {
        loop {
            match self.read_some() {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => panic!("not closed after {REPLY_MS_MAX} ms: {error}"),
            }
        }
        let mut words = Vec::new();
        while let Some((reply, len)) = parsed(&self.received) {
            self.received.drain(..len);
            words.push(reply);
        }
        assert!(self.received.is_empty(), "half a reply");
        words
    }

    /// Asserts that the server closes the connection without a further reply.
    #[track_caller]
    pub fn expect_close(&mut self) {
        let words = self.last_words();
        assert!(words.is_empty(), "{words:?}");
    }

    /// Reads what has arrived: 0 bytes mean the end of the connection.
    fn read_some(&mut self) -> Result<usize, ErrorKind> {
        let mut chunk = [0; 4096];
        let count = match self.link.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error.kind()),
        };
        self.received.extend_from_slice(&chunk[..count]);
        Ok(count)
    }
}

/// Whether the connection with this number is blocked.
#[track_caller]
fn is_blocked(watcher: &mut Client, id: i64) -> bool {
    let line = watcher.text(&format!("CLIENT LIST ID {id}"));
    let mut fields = line.split(' ');
    let flags = fields.find_map(|field| field.strip_prefix("flags="));
    flags.is_some_and(|flags| flags.contains('b'))
}

/// Whether the connection with this number exists.
#[track_caller]
pub fn is_connected(watcher: &mut Client, id: i64) -> bool {
    !watcher.text(&format!("CLIENT LIST ID {id}")).trim().is_empty()
}

/// The first reply in these bytes and its length; an error inside an array is text with a `-`.
fn parsed(bytes: &[u8]) -> Option<(Result<Value, String>, usize)> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let line = String::from_utf8_lossy(&bytes[1..end]).into_owned();
    let begin = end + 2;
    let reply = match bytes[0] {
        b'-' => Err(line),
        b'+' if line == "OK" => Ok(Value::Okay),
        b'+' => Ok(Value::SimpleString(line)),
        b':' => Ok(Value::Int(line.parse().unwrap())),
        b'$' | b'*' if line == "-1" => Ok(Value::Nil),
        b'_' => Ok(Value::Nil),
        b'$' => {
            let len: usize = line.parse().unwrap();
            let text = bytes.get(begin..begin + len)?;
            bytes.get(begin + len + 1)?;
            return Some((Ok(Value::BulkString(text.to_vec())), begin + len + 2));
        }
        b'*' => return parsed_array(bytes, begin, line.parse().unwrap()),
        // RESP3: a map is read as its keys and values; a message is read as well.
        b'%' => return parsed_array(bytes, begin, 2 * line.parse::<usize>().unwrap()),
        b'>' => {
            let (array, len) = parsed_array(bytes, begin, line.parse().unwrap())?;
            return Some((message(array), len));
        }
        other => panic!("neither RESP2 nor a part of RESP3 that is known here: {other}"),
    };
    Some((reply, begin))
}

fn parsed_array(
    bytes: &[u8],
    mut at: usize,
    count: usize,
) -> Option<(Result<Value, String>, usize)> {
    let mut items = Vec::new();
    for _ in 0..count {
        let (item, len) = parsed(bytes.get(at..)?)?;
        items.push(item.unwrap_or_else(|error| Value::SimpleString(format!("-{error}"))));
        at += len;
    }
    Some((Ok(Value::Array(items)), at))
}

/// An array that is a message: its first word says of what kind.
fn message(array: Result<Value, String>) -> Result<Value, String> {
    let Ok(Value::Array(mut data)) = array else { panic!("{array:?}") };
    let kind = match text(&data.remove(0)).as_str() {
        "smessage" => PushKind::SMessage,
        other => PushKind::Other(other.to_owned()),
    };
    Ok(Value::Push { kind, data })
}

#[test]
fn the_end_of_a_server_is_the_end_of_a_connection() {
    let mut server = Server::start();
    let mut waiter = Waiter::may_connect(&server.socket()).unwrap();
    assert_eq!(waiter.may_reply(1).unwrap(), None);
    waiter.say("PING");
    let pong = Value::SimpleString("PONG".to_owned());
    assert_eq!(waiter.may_reply(REPLY_MS_MAX).unwrap(), Some(Ok(pong)));
    server.kill_9();
    assert!(waiter.may_reply(REPLY_MS_MAX).is_err());
    assert!(Waiter::may_connect(&server.socket()).is_err());
}
