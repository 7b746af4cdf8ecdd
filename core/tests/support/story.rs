//! Stories: what happens to one lock, line by line, with times.
//!
//! ```text
//! # Readers share.                       a story begins with what it shows, in an empty world
//! given max-depth=3                      what is set beforehand
//! at 0   acquire a read lease=100        -> granted #1 depth=1 until=100; events acquired
//! at 10  acquire b write lease=100       -> not now, wait 90
//! ```
//! Times are milliseconds since the story began; `0.999` is a moment before the next one. `#1` is
//! the first token that the story issued, also inside of error texts. An owner may contain `\xhh`.
//! What follows the arrow is compared in full; a line without an arrow must have no result.

use rlock_core::text::escaped;
use rlock_core::{
    Acquire, ClientId, Effects, Input, Kind, Levels, Mode, Patience, Refusal, Reply, Token,
    WaiterId,
};

use super::{START_US, World, acquire, release, renew};

const START_MS: u64 = START_US / 1000;

/// Runs every story of a file, and returns how many lines ran. Panics with all lines whose results
/// differ.
pub fn run(file: &str, text: &'static str) -> usize {
    let mut story = Story::new();
    let mut wrong = Vec::new();
    let mut ran = 0;
    let mut was_heading = false;
    for (index, line) in text.lines().enumerate() {
        let at = Place { file, line: index + 1 };
        let is_heading = line.starts_with('#');
        if is_heading && !was_heading {
            story = Story::new();
        }
        was_heading = is_heading;
        if is_heading || line.trim().is_empty() {
            continue;
        }
        let (said, expected) = line.split_once("->").unwrap_or((line, ""));
        let happened = story.tell(said);
        if happened != expected.trim() {
            let said = said.trim_end();
            wrong.push(format!("{at}: {said}\n  expected -> {expected}\n  happened -> {happened}"));
        }
        ran += 1;
    }
    assert!(wrong.is_empty(), "{} of {ran} lines differ\n{}", wrong.len(), wrong.join("\n"));
    ran
}

/// Prints the position in the story if a law breaks.
struct Place<'a> {
    file: &'a str,
    line: usize,
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "core/tests/stories/{}.txt:{}", self.file, self.line)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at {self}");
        }
    }
}

struct Story {
    world: World,
    key: Vec<u8>,
}

impl Story {
    fn new() -> Self {
        Self { world: World::new(), key: b"k".to_vec() }
    }

    /// Does what the left side of a line asks; returns what its right side should be.
    fn tell(&mut self, said: &'static str) -> String {
        let mut words = said.split_whitespace();
        match words.next() {
            Some("given") => self.given(words.next().expect("name=value")),
            Some("at") => {
                let at_ms = words.next().expect("a time");
                self.world.set_clock(microseconds(at_ms));
                self.happen(&words.collect::<Vec<_>>())
            }
            other => panic!("a line begins with `at`, `given` or `#`, not {other:?}"),
        }
    }

    fn given(&mut self, setting: &'static str) -> String {
        match setting.split_once('=').expect("name=value") {
            ("max-depth", depth) => self.world.max_depth = number(depth),
            ("tickets-left", count) => self.world.tickets_left = number(count),
            ("key", key) => self.key = unescaped(key),
            (other, _) => panic!("{other} cannot be given"),
        }
        String::new()
    }

    fn happen(&mut self, words: &[&'static str]) -> String {
        match *words {
            ["show"] => self.show(),
            ["another", "type"] => self.dismiss(&Refusal::WrongType),
            ["slot", "moved"] => self.dismiss(&Refusal::TryAgain),
            ["line"] => self.line(),
            [waiter, "leaves"] => {
                self.world.leave(waiter_of(waiter));
                String::new()
            }
            [waiter, "hears"] => {
                self.world.volatile.heard(waiter_of(waiter));
                String::new()
            }
            ["connection", client, "ends"] => {
                self.world.volatile.disconnect(ClientId::from(number::<u64>(client)));
                String::new()
            }
            ["starts" | "promoted"] => {
                self.world.begin_tokens();
                String::new()
            }
            ["restarts"] => {
                self.world.restart();
                String::new()
            }
            ["fails", "over"] => {
                self.world.fail_over();
                String::new()
            }
            ["sees", token] => {
                self.world.see(self.token(token));
                String::new()
            }
            ["token", token] => format!("{} us", self.token(token).get() - START_US),
            ["plausible", token] => {
                let is_implausible = self.token(token).is_implausible_at(self.world.now);
                if is_implausible { "no" } else { "yes" }.into()
            }
            ["check", token, mode] => {
                let (token, mode) = (self.token(token), mode_of(mode).expect("a mode"));
                u8::from(self.world.lock.has_token_at(token, mode, self.world.now)).to_string()
            }
            ["mode"] => {
                self.world.lock.mode_at(self.world.now).map_or("free", Mode::lower).to_string()
            }
            _ => self.ask(words),
        }
    }

    fn ask(&mut self, words: &[&'static str]) -> String {
        let input = self.input(words);
        let owner = match input {
            Input::Acquire(ask) => ask.owner,
            Input::Release(ask) => ask.owner,
            Input::Renew(ask) => ask.owner,
            Input::Cancel(owner) => owner,
            _ => b"",
        };
        let mut waits = None;
        let effects = match input {
            Input::Acquire(ask) if matches!(ask.patience, Patience::Block | Patience::Tell) => {
                let block = words.iter().find_map(|word| word.strip_prefix("block="));
                let block_ms = block.filter(|ms| *ms != "forever").map(number);
                let (effects, waiter) = self.world.block(ask, block_ms);
                waits = waiter;
                effects
            }
            _ => self.world.step(input),
        };
        let mut said = match waits {
            Some(waiter) => format!("waits w{}", waiter.get()),
            None => self.reply(&effects.reply, owner),
        };
        if !effects.events.is_empty() {
            said.push_str("; events");
        }
        for event in &effects.events {
            let name = event.name().to_str().expect("an event's name is a word");
            said.push(' ');
            said.push_str(name.strip_prefix("rlock.").expect("a name of ours"));
        }
        self.say_others(&effects, &mut said);
        said
    }

    /// The replies to others.
    fn say_others(&self, effects: &Effects<'_>, said: &mut String) {
        for wake in &effects.wakes {
            let reply = self.reply(&wake.reply, b"");
            said.push_str(&format!("; w{} {reply}", wake.waiter.get()));
        }
        for owner in &effects.turns {
            said.push_str(&format!("; turn {}", escaped(owner.as_bytes())));
        }
        for client in &effects.lost {
            said.push_str(&format!("; closes {}", client.get()));
        }
    }

    fn input(&self, words: &[&'static str]) -> Input<'static> {
        match *words {
            ["acquire", owner, ref options @ ..] => self.acquire(owner, options),
            ["take", owner, lease] => {
                let ms = lease.strip_prefix("lease=").expect("a lease");
                super::take(unescaped(owner).leak(), number(ms))
            }
            ["release", owner, ref options @ ..] => {
                let mut ask = release(unescaped(owner).leak());
                for option in options {
                    match option.split_once('=') {
                        Some(("token", token)) => ask.token = Some(self.token(token)),
                        Some(("depth", depth)) => ask.levels = Levels::DownTo(number(depth)),
                        None if *option == "all" => ask.levels = Levels::All,
                        _ => ask.mode = Some(mode_of(option).expect("an option of release")),
                    }
                }
                Input::Release(ask)
            }
            ["renew", owner, ref options @ ..] => {
                let mut ask = renew(unescaped(owner).leak(), 1);
                for option in options {
                    match option.split_once('=') {
                        Some(("token", token)) => ask.token = Some(self.token(token)),
                        Some(("lease", ms)) => ask.lease = super::lease(number(ms)),
                        _ => ask.mode = Some(mode_of(option).expect("an option of renew")),
                    }
                }
                Input::Renew(ask)
            }
            ["cancel", owner] => Input::Cancel(unescaped(owner).leak()),
            ["tick"] => Input::Tick,
            ["force"] => Input::Force(None),
            ["force", mode] => Input::Force(Some(mode_of(mode).expect("a mode"))),
            _ => panic!("nobody can {words:?}"),
        }
    }

    fn acquire(&self, owner: &str, options: &[&'static str]) -> Input<'static> {
        let mut ask: Acquire<'static> = acquire(unescaped(owner).leak(), Mode::Write, 1);
        for option in options {
            match option.split_once('=') {
                Some(("lease", ms)) => ask.lease = super::lease(number(ms)),
                Some(("limit", limit)) => {
                    (ask.mode, ask.limit) = (Mode::Read, Some(number(limit)));
                }
                Some(("maxqueue", most)) => ask.max_queue = Some(number(most)),
                Some(("depth", depth)) => ask.depth = Some(number(depth)),
                Some(("block", _)) => ask.patience = Patience::Block,
                Some(("queue", ms)) => ask.patience = Patience::Ticket(super::lease(number(ms))),
                Some(("session", client)) => {
                    ask.session = Some(ClientId::from(number::<u64>(client)))
                }
                None if *option == "upgrade" => ask.upgrade = true,
                _ => ask.mode = mode_of(option).expect("an option of acquire"),
            }
        }
        Input::Acquire(ask)
    }

    fn reply(&self, reply: &Reply, owner: &[u8]) -> String {
        match reply {
            Reply::Granted { token, remaining_ms } => {
                let mut holds = self.world.lock.holds_at(self.world.now);
                let hold = holds.find(|(_, _, hold)| hold.token == *token);
                let (_, _, hold) = hold.expect("who was granted holds");
                // Another grant of the same step may have extended it since.
                assert!(hold.deadline.left_at(self.world.now) >= *remaining_ms);
                let until = hold.deadline.get() - START_MS;
                format!("granted {} depth={} until={until}", self.name(*token), hold.depth)
            }
            Reply::NotNow { wait_ms: Some(wait_ms) } => format!("not now, wait {wait_ms}"),
            Reply::NotNow { wait_ms: None } => "not now".into(),
            Reply::MustWait { .. } => "must wait".into(),
            Reply::MustConfirm => "must confirm".into(),
            Reply::Pending => "pending".into(),
            Reply::Renewed => "1".into(),
            Reply::Count(count) => count.to_string(),
            Reply::Refused(refusal) => {
                let line = refusal.line(&self.key, owner);
                assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line:?}");
                let named = |line: String, token: &Token| {
                    line.replace(&token.get().to_string(), &self.name(*token))
                };
                self.world.issued.iter().fold(line, named)
            }
        }
    }

    /// The holds, as everybody sees them.
    fn show(&self) -> String {
        let now = self.world.now;
        let holds = self.world.lock.holds_at(now).map(|(owner, mode, hold)| {
            let (owner, mode) = (escaped(owner), mode.lower());
            let (token, depth) = (self.name(hold.token), hold.depth);
            format!("{owner} {mode} {token} depth={depth} until={}", hold.deadline.get() - START_MS)
        });
        let holds: Vec<String> = holds.collect();
        if holds.is_empty() { "free".into() } else { holds.join(", ") }
    }

    /// Nobody can be granted here any more.
    fn dismiss(&mut self, why: &Refusal) -> String {
        let dismissed = self.world.dismiss(why);
        let wakes = dismissed
            .wakes
            .iter()
            .map(|wake| format!("w{} {}", wake.waiter.get(), self.reply(&wake.reply, b"")));
        let lost = dismissed.lost.iter().map(|client| format!("closes {}", client.get()));
        wakes.chain(lost).collect::<Vec<_>>().join("; ")
    }

    /// Who waits, in order.
    fn line(&self) -> String {
        let one = |(entry, turn): (&rlock_core::Entry, bool)| {
            let (owner, mode) = (escaped(entry.owner.as_bytes()), entry.mode.lower());
            let limit = entry.limit.map_or(String::new(), |limit| format!("={limit}"));
            let kind = match entry.kind {
                Kind::Blocked(waiter) | Kind::Told(waiter) => format!("w{}", waiter.get()),
                Kind::Ticket => "ticket".into(),
                Kind::Group(waiter) => format!("g{}", waiter.get()),
            };
            let turn = if turn { " turn" } else { "" };
            format!("{owner} {mode}{limit} {kind}{turn}")
        };
        let line: Vec<String> = self.world.volatile.queue.iter().map(one).collect();
        if line.is_empty() { "nobody".into() } else { line.join(", ") }
    }

    fn name(&self, token: Token) -> String {
        match self.world.issued.iter().position(|issued| *issued == token) {
            Some(place) => format!("#{}", place + 1),
            None => token.get().to_string(),
        }
    }

    /// `#1`, `last` (2^53 - 1), a plain number, or `+5us`: this many microseconds after the start.
    fn token(&self, word: &str) -> Token {
        if let Some(place) = word.strip_prefix('#') {
            return self.world.issued[number::<usize>(place) - 1];
        }
        let number = match word.strip_prefix('+').and_then(|word| word.strip_suffix("us")) {
            Some(us) => START_US + number::<u64>(us),
            None if word == "last" => Token::MAX,
            None => number(word),
        };
        Token::new(number).expect("a token from 1 to 2^53 - 1")
    }
}

fn mode_of(word: &str) -> Option<Mode> {
    match word {
        "read" => Some(Mode::Read),
        "write" => Some(Mode::Write),
        _ => None,
    }
}

fn waiter_of(word: &str) -> WaiterId {
    WaiterId::from(number::<u64>(word.strip_prefix('w').expect("a wait, like w1")))
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number that fits here"))
}

/// Microseconds of a time in milliseconds with up to three decimals.
fn microseconds(ms: &str) -> u64 {
    let (whole, part) = ms.split_once('.').unwrap_or((ms, ""));
    number::<u64>(whole) * 1000 + number::<u64>(&format!("{part:0<3}"))
}

fn unescaped(word: &str) -> Vec<u8> {
    let mut parts = word.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(hex, 16).expect("two hex digits"));
        bytes.extend(rest.as_bytes());
    }
    bytes
}

/// A step, written as a line of a story, so that a failing history can become one.
pub fn line(us: u64, input: &Input<'_>) -> String {
    let owner = |owner: &[u8]| escaped(owner);
    let mode = |mode: Option<Mode>| mode.map_or(String::new(), |mode| format!(" {}", mode.lower()));
    let token =
        |token: Option<Token>| token.map_or(String::new(), |t| format!(" token={}", t.get()));
    let what = match input {
        Input::Acquire(ask) => format!(
            "acquire {}{} lease={}{}{}",
            owner(ask.owner),
            mode(Some(ask.mode)),
            ask.lease.get(),
            if ask.upgrade { " upgrade" } else { "" },
            patience(ask),
        ),
        Input::Release(ask) => {
            let levels = match ask.levels {
                Levels::One => String::new(),
                Levels::All => " all".into(),
                Levels::DownTo(depth) => format!(" depth={depth}"),
            };
            format!("release {}{}{}{levels}", owner(ask.owner), mode(ask.mode), token(ask.token))
        }
        Input::Renew(ask) => {
            let lease = ask.lease.get();
            let (mode, token) = (mode(ask.mode), token(ask.token));
            format!("renew {}{mode} lease={lease}{token}", owner(ask.owner))
        }
        Input::Force(only) => format!("force{}", mode(*only)),
        Input::Cancel(name) => format!("cancel {}", owner(name)),
        other => format!("{other:?}"),
    };
    format!("at {}.{:03} {what}", us / 1000, us % 1000)
}

fn patience(ask: &Acquire<'_>) -> String {
    let depth = ask.depth.map_or(String::new(), |depth| format!(" depth={depth}"));
    let session = ask.session.map_or(String::new(), |client| format!(" session={}", client.get()));
    let limit = ask.limit.map_or(String::new(), |limit| format!(" limit={limit}"));
    let most = ask.max_queue.map_or(String::new(), |most| format!(" maxqueue={most}"));
    let depth = depth + &limit + &most;
    match ask.patience {
        Patience::None | Patience::Take => depth + &session,
        Patience::Block | Patience::Tell => format!("{depth}{session} block=forever"),
        Patience::Ticket(window) => format!("{depth}{session} queue={}", window.get()),
    }
}
