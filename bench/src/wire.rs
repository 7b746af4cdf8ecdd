//! Commands and replies as bytes. This is the cheapest way for the client, so that the server is
//! the limit.

/// A command in the server's protocol.
pub fn command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
        bytes.extend_from_slice(word.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The same, made from a line with spaces between the arguments.
pub fn line(line: &str) -> Vec<u8> {
    command(&line.split(' ').collect::<Vec<_>>())
}

/// The length of the first reply in `bytes`, if it is complete.
pub fn reply_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).unwrap().parse::<i64>().unwrap();
    match bytes[0] {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' => Some(end),
        b'$' => match number() {
            -1 => Some(end),
            len => Some(end + len as usize + 2).filter(|end| *end <= bytes.len()),
        },
        b'*' | b'>' | b'~' | b'%' => {
            let mut at = end;
            let parts = if bytes[0] == b'%' { 2 * number() } else { number() };
            for _ in 0..parts {
                at += reply_len(&bytes[at..])?;
            }
            Some(at)
        }
        other => panic!("not RESP: {other}"),
    }
}

/// The text of a message that a subscriber gets: the last line of the reply.
pub fn message(reply: &[u8]) -> &[u8] {
    let said = reply.strip_suffix(b"\r\n").unwrap_or(reply);
    let begin = said.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    &said[begin..]
}
