//! What README and docs print is what the server says: every `console` block is executed with
//! `redis-cli`.
//!
//! A line `> COMMAND` is sent on a connection of its own, the lines below it are its reply. `1>
//! COMMAND` names who says it; without a reply below, it waits, and `1< REPLY` is what it gets
//! later. Tokens stand for the tokens of this run, in the same order; what is left of 30 seconds
//! may be a little more or less.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Server, until};

#[test]
fn every_printed_session_gives_the_printed_replies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![root.join("README.md")];
    pages.extend(root.join("docs").read_dir().unwrap().map(|entry| entry.unwrap().path()));
    let mut sessions = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|ext| ext == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        for block in text.split("```console\n").skip(1) {
            let (session, _) = block.split_once("```").unwrap();
            replay(session, &page.display().to_string());
            sessions += 1;
        }
    }
    assert!(sessions >= 2, "only {sessions} sessions were found");
}

/// One session on a server of its own.
fn replay(session: &str, page: &str) {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut waiting: BTreeMap<&str, (Child, &str)> = BTreeMap::new();
    let (mut tokens, mut lines) = (Tokens::default(), session.lines().peekable());
    while let Some(line) = lines.next() {
        let mut printed = Vec::new();
        while let Some(reply) = lines.next_if(|line| !is_spoken(line)) {
            printed.push(reply);
        }
        let context = format!("{page}: {line}");
        if let Some((who, reply)) = line.split_once("< ") {
            let (child, command) = waiting.remove(who).expect("nobody waits there");
            printed.insert(0, reply);
            tokens.compare(&printed, &output(child), &format!("{context} (of {command})"));
        } else {
            let (who, command) = line.split_once("> ").expect("a command or a reply");
            let child = say(&server, command);
            if printed.is_empty() {
                let mut client = server.client();
                until(5000, || {
                    client.info_number("rlock", "rlock_waiters") as usize > waiting.len()
                });
                waiting.insert(who, (child, command));
            } else {
                tokens.compare(&printed, &output(child), &context);
            }
        }
    }
    assert!(waiting.is_empty(), "{page}: somebody waits at the end of a session");
}

fn is_spoken(line: &str) -> bool {
    let name = line.trim_start_matches(|c: char| c.is_ascii_digit());
    name.starts_with("> ") || name.starts_with("< ")
}

fn say(server: &Server, command: &str) -> Child {
    let cli = std::env::var("RLOCK_CLI").unwrap_or_else(|_| "redis-cli".into());
    let mut program = Command::new(cli);
    program.arg("--no-raw").arg("-s").arg(server.socket());
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().expect("redis-cli runs");
    // As a person types it: redis-cli reads the quotes.
    writeln!(child.stdin.take().unwrap(), "{command}").unwrap();
    child
}

fn output(child: Child) -> Vec<String> {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Printed token by real token.
#[derive(Default)]
struct Tokens(BTreeMap<u64, u64>);

impl Tokens {
    fn compare(&mut self, printed: &[&str], replied: &[String], context: &str) {
        assert_eq!(printed.len(), replied.len(), "{context}: {replied:#?}");
        for (printed, replied) in printed.iter().zip(replied) {
            let (Some(left), Some(right)) = (number(printed), number(replied)) else {
                assert_eq!(printed, replied, "{context}");
                continue;
            };
            let kinds = (kind(left), kind(right));
            assert_eq!(kinds.0, kinds.1, "{context}: {replied}");
            match kinds.0 {
                Kind::Exact => assert_eq!(printed, replied, "{context}"),
                Kind::Lease => {}
                Kind::Token => {
                    let known = *self.0.entry(left).or_insert(right);
                    assert_eq!(known, right, "{context}: another token");
                    let tokens: Vec<u64> = self.0.values().copied().collect();
                    assert!(tokens.is_sorted(), "{context}: tokens do not rise as printed");
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Exact,
    Lease,
    Token,
}

fn kind(number: u64) -> Kind {
    match number {
        1_000_000_000_000.. => Kind::Token,
        20_001..=30_000 => Kind::Lease,
        _ => Kind::Exact,
    }
}

fn number(line: &str) -> Option<u64> {
    line.rsplit_once("(integer) ")?.1.parse().ok()
}
