//! A raw socket: what the server sends, byte for byte.

use std::io::{Read, Write};

use crate::Server;
use crate::link::Link;

/// A connection that sends and receives plain bytes.
pub struct Wire {
    link: Link,
}

impl Wire {
    /// Connects to the server's unix socket.
    pub fn to(server: &Server) -> Wire {
        Wire { link: Link::to(&server.socket()).unwrap() }
    }

    /// Sends one command, and returns everything that arrives before the reply of a `PING` behind
    /// it. So a forged or a second reply is seen.
    #[track_caller]
    pub fn exchange(&mut self, words: &[&[u8]]) -> Vec<u8> {
        const END: &[u8] = b"$15\r\nthe-end-of-that\r\n";
        self.link.write_all(&packed(words)).unwrap();
        let ping = packed(&[b"PING", b"the-end-of-that"]);
        self.link.write_all(&ping).unwrap();
        let mut received = Vec::new();
        let mut chunk = [0; 4096];
        while !received.ends_with(END) {
            let count = self.link.read(&mut chunk).unwrap();
            assert_ne!(count, 0, "closed after {:?}", received.escape_ascii().to_string());
            received.extend_from_slice(&chunk[..count]);
        }
        received.truncate(received.len() - END.len());
        received
    }

    /// The error line that these words must get, checked to be one printable line.
    #[track_caller]
    pub fn error_line(&mut self, words: &[&[u8]]) -> String {
        let reply = self.exchange(words);
        let shown = reply.escape_ascii().to_string();
        let line = reply.strip_prefix(b"-").and_then(|r| r.strip_suffix(b"\r\n"));
        let line = line.unwrap_or_else(|| panic!("not an error line: {shown}"));
        let is_printable = line.iter().all(|byte| (b' '..=b'~').contains(byte));
        assert!(is_printable, "not printable: {shown}");
        String::from_utf8(line.to_vec()).unwrap()
    }
}

fn packed(words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    command
}
