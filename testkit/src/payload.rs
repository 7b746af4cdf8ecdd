//! Payloads of `DUMP` and commands of an AOF, for tests that change them.

use std::fs;
use std::path::{Path, PathBuf};

/// The end of a payload: the RDB version in 2 bytes, then the checksum in 8.
const FOOTER_LEN: usize = 10;

/// A payload of `DUMP` without its checksum.
#[derive(Clone)]
pub struct Payload {
    /// What the checksum covers: the value and the RDB version.
    pub body: Vec<u8>,
}

impl Payload {
    /// Removes the checksum, after checking that ours equals the server's.
    #[track_caller]
    pub fn open(dump: &[u8]) -> Payload {
        let body = dump[..dump.len() - 8].to_vec();
        let payload = Payload { body };
        assert_eq!(payload.sealed(), dump, "another checksum than the server's");
        payload
    }

    /// The payload as `RESTORE` wants it, with the checksum of its present bytes.
    pub fn sealed(&self) -> Vec<u8> {
        let checksum = crc64(&self.body).to_le_bytes();
        [self.body.as_slice(), &checksum].concat()
    }

    /// How many bytes belong to the value.
    pub fn value_len(&self) -> usize {
        self.body.len() + 8 - FOOTER_LEN
    }
}

/// The same bytes with one token replaced by another, in whichever form they contain it.
#[track_caller]
pub fn with_token(bytes: &[u8], old: i64, new: i64) -> Vec<u8> {
    let forms: [fn(u64) -> Vec<u8>; 4] = [
        varint,
        |n| n.to_le_bytes().to_vec(),
        |n| n.to_be_bytes().to_vec(),
        |n| n.to_string().into_bytes(),
    ];
    for form in forms {
        let (old, new) = (form(old as u64), form(new as u64));
        let mut places = bytes.windows(old.len());
        if let Some(at) = places.position(|window| window == old) {
            assert_eq!(old.len(), new.len(), "the new token has another length");
            let mut changed = bytes.to_vec();
            changed[at..at + old.len()].copy_from_slice(&new);
            return changed;
        }
    }
    panic!("token {old} is not in {}", bytes.escape_ascii())
}

/// The file to which a server appends its commands now.
pub fn newest_aof(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join("appendonlydir")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_string_lossy().ends_with("incr.aof")).max().unwrap()
}

/// All commands in the AOF of a server, oldest first, without those that an RDB preamble contains.
#[track_caller]
pub fn aof_commands(folder: &Path) -> Vec<Vec<Vec<u8>>> {
    let mut files: Vec<_> = fs::read_dir(folder.join("appendonlydir"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "aof"))
        .collect();
    // `…base.aof` sorts before `…incr.aof`; there is one of each unless a rewrite is in progress.
    files.sort();
    files.iter().flat_map(|path| commands(&fs::read(path).unwrap())).collect()
}

#[track_caller]
fn commands(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut commands = Vec::new();
    if [b"REDIS", b"VALKE"].iter().any(|mark| bytes.starts_with(*mark)) {
        return commands;
    }
    while !bytes.is_empty() {
        // Annotations, such as timestamps, are skipped.
        if bytes[0] == b'#' {
            line(&mut bytes, b'#');
            continue;
        }
        let word_count = line(&mut bytes, b'*');
        let words = (0..word_count).map(|_| {
            let length = line(&mut bytes, b'$');
            let (word, rest) = bytes.split_at(length);
            bytes = &rest[2..];
            word.to_vec()
        });
        commands.push(words.collect());
    }
    commands
}

/// Removes the first line, and returns the number behind its mark.
#[track_caller]
fn line(bytes: &mut &[u8], mark: u8) -> usize {
    assert_eq!(bytes[0], mark, "not an AOF: {}", bytes.escape_ascii());
    let end = bytes.windows(2).position(|w| w == b"\r\n").unwrap();
    let number = String::from_utf8_lossy(&bytes[1..end]).parse();
    *bytes = &bytes[end + 2..];
    number.unwrap_or_default()
}

/// CRC-64/Jones as Redis uses it: reflected, starting from zero.
fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL_REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;
    let mut crc = 0;
    for byte in bytes {
        crc ^= u64::from(*byte);
        for _ in 0..8 {
            let is_odd = crc & 1 == 1;
            crc >>= 1;
            if is_odd {
                crc ^= POLYNOMIAL_REFLECTED;
            }
        }
    }
    crc
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
