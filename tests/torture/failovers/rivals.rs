//! Other locks in the same rounds, through their own clients. For each client, one process takes as
//! many locks as it can; after the failover, another one asks for them. A claim is lost if the
//! latter gets its lock before the time at which the holder's client says that the lease ends.
//!
//! Both processes run the same program. A line of its input asks it for one of these:
//!
//! - `claim HOW PORT PREFIX`: connect to the servers by `sentinel` or `cluster`; answer `ready`.
//! - `go`: lock new keys with that prefix, and print a line for each:
//!   `claim SORT KEY OWNER TOKEN SENT-MS TOLD-MS UNTIL-MS`; the token is 0 if there are none.
//! - `stop`: answer `done`, and then print nothing anymore. Nothing is released.
//! - `ask PORT KEY…`: try each of these locks once, at that server. Print `granted KEY TOKEN MS`
//!   with the time of the grant, `refused KEY`, or `unknown KEY`; then `done`.

use std::collections::HashMap;
use std::process::Command;

use super::claims::{Claim, Kind, Sort};
use super::judge::Loss;
use crate::history::Mode;
use rlock_testkit::Program;

/// The locks of the programs that were named.
#[derive(Default)]
pub struct Rivals(Vec<Rival>);

struct Rival {
    holder: Program,
    stranger: Program,
    /// The indices of what it claims, in the list of all claims of the round.
    claims: Vec<usize>,
}

/// A lock that the stranger was granted.
struct Grant {
    token: i64,
    at_ms: i64,
}

impl Rivals {
    pub fn of(programs: &[&str]) -> Rivals {
        let started = |program: &&str| {
            let start = || Program::of(Command::new(program).arg("claims"));
            Rival { holder: start(), stranger: start(), claims: Vec::new() }
        };
        Rivals(programs.iter().map(started).collect())
    }

    /// Connects them; `door` is where clients learn which server is the primary.
    pub fn connect(&mut self, door: impl Fn() -> String, prefix: &str) {
        for rival in &mut self.0 {
            let answer = rival.holder.ask(&format!("claim {} {prefix}", door()));
            assert_eq!(answer, "ready");
        }
    }

    pub fn begin(&mut self) {
        self.0.iter_mut().for_each(|rival| rival.holder.say("go"));
    }

    /// Ends the round for them, and adds what they held for certain when the primary died.
    pub fn add_claims(&mut self, fallen_ms: i64, claims: &mut Vec<Claim>) {
        for rival in &mut self.0 {
            rival.holder.say("stop");
            let from = claims.len();
            let all = until_done(&mut rival.holder).into_iter().map(|line| claim(&line));
            claims.extend(all.filter(|claim| claim.told_ms <= fallen_ms));
            rival.claims = (from..claims.len()).collect();
        }
    }

    /// Lets strangers ask for the locks at the server that took over.
    pub fn ask(&mut self, port: u16, claims: &[Claim]) {
        for rival in &mut self.0 {
            let keys: Vec<&str> =
                rival.claims.iter().map(|place| claims[*place].key.as_str()).collect();
            rival.stranger.say(&format!("ask {port} {}", keys.join(" ")));
        }
    }

    /// The claims whose locks a stranger got too early. `complain` gets those without an answer.
    pub fn losses(&mut self, claims: &[Claim], mut complain: impl FnMut(String)) -> Vec<Loss> {
        let mut losses = Vec::new();
        for rival in &mut self.0 {
            let mut granted = HashMap::new();
            for line in until_done(&mut rival.stranger) {
                match line.split(' ').collect::<Vec<_>>()[..] {
                    ["granted", key, token, at_ms] => {
                        let grant = Grant { token: number(token), at_ms: number(at_ms) };
                        granted.insert(key.to_owned(), grant);
                    }
                    ["refused", _] => {}
                    _ => complain(format!("a stranger has no answer: {line}")),
                }
            }
            for &claim in &rival.claims {
                let grant = granted.get(&claims[claim].key);
                let why = grant.and_then(|grant| loss(&claims[claim], grant));
                losses.extend(why.map(|why| Loss { claim, why }));
            }
        }
        losses
    }
}

fn loss(claim: &Claim, Grant { token, at_ms }: &Grant) -> Option<String> {
    let early_ms = claim.until_ms - at_ms;
    (early_ms > 0)
        .then(|| format!("a stranger is granted it {early_ms} ms too early, token {token}"))
}

/// The lines until the one that says that there are no more.
fn until_done(program: &mut Program) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        match program.lines(1).pop() {
            Some(line) if line == "done" => return lines,
            Some(line) => lines.push(line),
            None => panic!("a rival's program has ended after {} lines", lines.len()),
        }
    }
}

fn claim(line: &str) -> Claim {
    let words: Vec<&str> = line.split(' ').collect();
    let ["claim", sort, key, owner, token, sent_ms, told_ms, until_ms] = words[..] else {
        panic!("not a claim: {line}");
    };
    let sort = match sort {
        "Redisson" => Sort::Redisson,
        "Fenced" => Sort::Fenced,
        "Redsync" => Sort::Redsync,
        _ => panic!("no such sort: {line}"),
    };
    let until_ms = number(until_ms);
    Claim {
        sort,
        kind: Kind::Grant,
        key: key.to_owned(),
        owner: owner.to_owned(),
        mode: Mode::Write,
        token: number(token),
        depth: 1,
        until_ms,
        owner_until_ms: until_ms,
        sent_ms: number(sent_ms),
        told_ms: number(told_ms),
    }
}

fn number(word: &str) -> i64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}
