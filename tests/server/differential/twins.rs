//! A real server and a simulated one that are told the same, at the same time by the real one's
//! clock.
//!
//! The simulated one is set to the moment at which the real one carried out a command, to the
//! millisecond. What a server does by itself it does some milliseconds after it is due: the keys
//! that this concerns are compared with as much allowance ([`Twins::blur`]), and no command is sent
//! so near to a deadline that it would matter.

use std::collections::BTreeMap;

use redis::Value;
use rlock_core::{ClientId, Kind, Lock, Mode, Now};
use rlock_simulation::fault::Fault;
use rlock_simulation::keyspace::{Key, Slot};
use rlock_simulation::server::Server as Simulated;
use rlock_simulation::words::{Out, Said, words};

use super::choice::{CONNECTIONS, Deed};
use super::{in_order, time_of, without_tokens};
use rlock_testkit::{Client, Listener, LockView, Server, Version, Waiter, until};

/// The least distance of a command to a deadline, in milliseconds.
const MARGIN_MS: u64 = 60;
/// More than that is not waited for: the machine stood still for so long.
const APART_MS_MAX: u64 = 500;
/// Nearer to a deadline than that, it is not known what came first.
const UNSURE_MS: u64 = 3;
/// How long the module may take to see that the gate is open again, in milliseconds.
const RETRY_MS: u64 = 50;
/// What cannot be told from a token: everything smaller.
const TOKEN_MIN: i64 = 1_000_000_000_000_000;

/// The simulated server's number of the connection that looks at keys.
const WATCHER: u64 = 1_000_000;

/// Both of them.
pub struct Twins {
    real: Server,
    control: Client,
    listener: Listener,
    simulated: Simulated,
    connections: Vec<(Waiter, ClientId)>,
    last_client: u64,
    tokens: BTreeMap<i64, i64>,
    /// How far apart times may be, by key, in milliseconds.
    blur: BTreeMap<Key, u64>,
    /// What was said, for whoever reads of a difference.
    said: Vec<String>,
    /// The machine was so slow that a deadline came in the midst of something: what each of them
    /// did first is not known.
    pub is_unsure: bool,
    /// Replies, keys and events that were compared.
    pub compared: u64,
}

fn client_number(client: ClientId) -> usize {
    usize::try_from(client.get()).unwrap()
}

impl Twins {
    /// Two servers in their first moment.
    pub fn new() -> Twins {
        let settings = ["notify-keyspace-events", "KEA", "rlock.max-depth", "4"];
        let real = Server::with(&[&settings[..], &["enable-debug-command", "yes"]].concat());
        let mut control = real.client();
        // Expired keys go when somebody looks at them, and not at a moment of the server's choice.
        control.ask("DEBUG SET-ACTIVE-EXPIRE 0");
        let mut simulated = Simulated::new(Fault::None);
        simulated.now = time_of(&control.ask("TIME"));
        simulated.role_is(true, 1);
        simulated.connect(ClientId::from(WATCHER), &"default".into());
        simulated.conditions.expires_at_once = real.version() >= Version::Valkey(8, 1);
        let listener = Listener::to(&real);
        let mut twins = Twins {
            real,
            control,
            listener,
            simulated,
            connections: Vec::new(),
            last_client: 0,
            tokens: BTreeMap::new(),
            blur: BTreeMap::new(),
            said: Vec::new(),
            is_unsure: false,
            compared: 0,
        };
        for _ in 0..CONNECTIONS {
            let connection = twins.connected();
            twins.connections.push(connection);
        }
        twins
    }

    fn connected(&mut self) -> (Waiter, ClientId) {
        self.last_client += 1;
        let client = ClientId::from(self.last_client);
        self.simulated.connect(client, &"default".into());
        (Waiter::connect(&self.real), client)
    }

    /// This connection is blocked, as far as the simulated server knows.
    pub fn is_blocked(&self, at: usize) -> bool {
        !self.simulated.reads(self.connections[at].1)
    }

    fn now(&mut self) -> Now {
        time_of(&self.control.ask("TIME"))
    }

    /// Does it to both, and compares what comes of it.
    pub fn carry_out(&mut self, deed: Deed) {
        self.keep_away_from_deadlines();
        self.said.push(format!("{deed:?}"));
        match deed {
            Deed::Send(at, line) => self.send(at, &line),
            Deed::HangUp(at) => self.hang_up(at),
            Deed::Unblock(at, with_error) => self.unblock(at, with_error),
            Deed::Pass(ms) => {
                let until_ms = self.now().ms().get() + ms;
                self.pass_until(until_ms);
            }
            Deed::Pause(ms) => {
                let now = self.now();
                self.go_on_to(now);
                self.control.ask(&format!("CLIENT PAUSE {ms} WRITE"));
                let end = self.simulated.now_ms() + ms;
                self.simulated.conditions.paused_until = end;
                self.pass_until(end + 2 * RETRY_MS);
            }
            Deed::TooFewReplicas(ms) => self.too_few_replicas(ms),
        }
        self.settle();
        self.keep_away_from_deadlines();
        if !self.is_unsure {
            self.compare_keys();
        }
        self.settle();
        if !self.is_unsure {
            self.compare_events();
        }
    }

    fn send(&mut self, at: usize, line: &str) {
        if self.is_unsure {
            return;
        }
        let (real, client) = &mut self.connections[at];
        let client = *client;
        real.say_all(&["TIME", line]);
        let begun = time_of(&real.answer());
        self.go_on_to(begun);
        self.simulated.run(client, &words(line));
        self.turn_simulated();
        if self.is_too_late() {
            return;
        }
        self.take_out();
        let ended = self.now();
        // Within another millisecond than was thought.
        self.blur_keys(ended.ms().get() - begun.ms().get(), |_| true);
    }

    fn hang_up(&mut self, at: usize) {
        let now = self.now();
        self.go_on_to(now);
        let new = self.connected();
        let (real, client) = std::mem::replace(&mut self.connections[at], new);
        let id = real.id();
        drop(real);
        until(5_000, || !rlock_testkit::is_connected(&mut self.control, id));
        self.simulated.free(client);
    }

    fn unblock(&mut self, at: usize, with_error: bool) {
        let (real, client) = &self.connections[at];
        let (id, client) = (real.id(), *client);
        let now = self.now();
        self.go_on_to(now);
        let how = if with_error { " ERROR" } else { "" };
        let told = self.control.number(&format!("CLIENT UNBLOCK {id}{how}"));
        if !self.is_too_late() {
            assert_eq!(told == 1, self.is_blocked(at), "{:#?}", self.said);
            self.simulated.unblock(client, with_error);
        }
    }

    fn too_few_replicas(&mut self, ms: u64) {
        self.control.ask("CONFIG SET min-replicas-to-write 1");
        self.simulated.conditions.min_replicas = 1;
        let until_ms = self.now().ms().get() + ms;
        self.pass_until(until_ms);
        if let Some(at) = (0..CONNECTIONS).find(|at| !self.is_blocked(*at)) {
            self.keep_away_from_deadlines();
            self.send(at, "RLOCK.ACQUIRE k0 o0");
            self.settle();
        }
        self.control.ask("CONFIG SET min-replicas-to-write 0");
        self.simulated.conditions.min_replicas = 0;
        let until_ms = self.now().ms().get() + 2 * RETRY_MS;
        self.pass_until(until_ms);
    }

    // --- time -----------------------------------------------------------------------------------

    /// What happens by itself on the simulated server next, by its clock in milliseconds.
    fn next_moment(&self, after: u64) -> Option<u64> {
        let Simulated { timers, keys, .. } = &self.simulated;
        let alarm = timers.alarm.map(|at| at.get().max(after));
        let conditions = &self.simulated.conditions;
        let opens_at = after.max(conditions.paused_until);
        let retries = self.simulated.state.is_retrying() && conditions.min_replicas == 0;
        let retry = retries.then_some(opens_at + RETRY_MS);
        let expiries = keys.iter().filter_map(|(_, _, slot)| slot.expires_at);
        let expiry = expiries.filter(|at| *at >= after).min();
        // One of several holds is over for whoever looks, though nothing is due.
        let locks = keys.iter().filter_map(|(_, _, slot)| slot.lock());
        let deadlines = locks.flat_map(|lock| lock.holds().map(|(_, _, hold)| hold.deadline.get()));
        let deadline = deadlines.filter(|at| *at >= after).min();
        [alarm, retry, expiry, deadline].into_iter().flatten().min()
    }

    fn keep_away_from_deadlines(&mut self) {
        loop {
            let now_ms = self.now().ms().get();
            let apart = MARGIN_MS + self.blur.values().max().copied().unwrap_or(0);
            // A machine that stood still so long is not waited for.
            self.is_unsure |= apart > APART_MS_MAX;
            if self.is_unsure {
                return;
            }
            match self.next_moment(now_ms.saturating_sub(apart)) {
                Some(next) if next <= now_ms + apart => self.pass_until(next + apart + 1),
                _ => break,
            }
        }
        if !self.is_unsure {
            self.take_out();
        }
    }

    /// Both have done by then what was due.
    fn pass_until(&mut self, until_ms: u64) {
        let control = &mut self.control;
        until(10_000, || time_of(&control.ask("TIME")).ms().get() > until_ms);
        self.settle_real();
        let now = self.now();
        self.go_on_to(now);
    }

    /// The simulated server does what is due by then, and has this time.
    fn go_on_to(&mut self, now: Now) {
        let mut at = self.simulated.now_ms();
        while let Some(next) = self.next_moment(at).filter(|next| *next < now.ms().get()) {
            let (before, retries) =
                (self.simulated.keys.clone(), self.simulated.state.is_retrying());
            self.simulated.now = Now::from_ms(next.max(at));
            self.turn_simulated();
            at = next.max(at) + 1;
            let late = now.ms().get() - next;
            self.is_unsure |= late < UNSURE_MS;
            // Where in its interval the real server retries, nobody knows, nor when its pause ends.
            let late = if retries { late.max(2 * RETRY_MS) } else { late };
            let after = self.simulated.keys.clone();
            let is_touched = |key: &Key| (0..2).any(|db| before.get(db, key) != after.get(db, key));
            self.blur_keys(late, is_touched);
        }
        let next = self.next_moment(now.ms().get());
        self.is_unsure |= next.is_some_and(|next| next < now.ms().get() + UNSURE_MS);
        self.simulated.now = now;
    }

    fn blur_keys(&mut self, ms: u64, is_touched: impl Fn(&Key) -> bool) {
        for name in ["k0", "k1"] {
            let key: Key = name.as_bytes().into();
            if is_touched(&key) && ms > 0 {
                let blur = self.blur.entry(key).or_default();
                *blur = ms.max(*blur);
            }
        }
        // A lock may have another name by now.
        let most = self.blur.values().max().copied().unwrap_or(0);
        self.blur.values_mut().for_each(|blur| *blur = most);
        let all = self.simulated.keys.iter();
        if all.filter(|(_, _, slot)| slot.lock().is_some()).count() == 0 {
            self.blur.clear();
        }
    }

    fn turn_simulated(&mut self) {
        for _ in 0..5 {
            self.simulated.turn(usize::MAX);
        }
    }

    /// A round trip takes at least one iteration of the loop.
    fn settle_real(&mut self) {
        for _ in 0..20 {
            self.control.ask("PING");
        }
    }

    fn settle(&mut self) {
        self.settle_real();
        let now = self.now();
        self.go_on_to(now);
        self.turn_simulated();
        if !self.is_unsure {
            self.take_out();
            self.expect_silence();
        }
    }

    // --- comparison -----------------------------------------------------------------------------

    /// What the simulated server said, the real one says.
    fn take_out(&mut self) {
        let mut out: BTreeMap<usize, Vec<Out>> = BTreeMap::new();
        for (client, one) in std::mem::take(&mut self.simulated.out) {
            out.entry(client_number(client)).or_default().push(one);
        }
        for at in 0..self.connections.len() {
            let client = self.connections[at].1;
            let Some(expected) = out.remove(&client_number(client)) else { continue };
            for one in expected {
                match one {
                    Out::Said(said) => {
                        let told = self.connections[at].0.reply();
                        self.compare_reply(&said, &told);
                    }
                    Out::Closed => {
                        self.connections[at].0.expect_close();
                        self.connections[at] = self.connected();
                    }
                }
            }
        }
    }

    fn expect_silence(&mut self) {
        for (connection, _) in &mut self.connections {
            if connection.has_reply() {
                panic!("{:#?}\nunexpected: {:?}", self.said, connection.reply());
            }
        }
    }

    fn compare_reply(&mut self, said: &Said, told: &Result<Value, String>) {
        self.compared += 1;
        let is_same = match (said, told) {
            (Said::Nil, Ok(Value::Nil)) | (Said::Ok, Ok(Value::Okay)) => true,
            (Said::Int(one), Ok(Value::Int(other))) => self.is_same_number(*one, *other, 0),
            (Said::Error(one), Err(other)) => without_tokens(one) == without_tokens(other),
            (Said::Array(ours), Ok(Value::Array(theirs))) => {
                let Said::Int(ms) = &ours[1] else { panic!("{ours:?}") };
                let first = match (&ours[0], &theirs[0]) {
                    (Said::Nil, Value::Nil) => true,
                    (Said::Int(one), Value::Int(other)) => self.is_same_number(*one, *other, 0),
                    _ => false,
                };
                // The time goes on in between.
                let Value::Int(other) = &theirs[1] else { panic!("{theirs:?}") };
                let blur = self.blur.values().max().copied().unwrap_or(0);
                let late = self.now().ms().get().saturating_sub(self.simulated.now_ms());
                first && self.is_same_number(*ms, *other, blur + late + 1)
            }
            _ => false,
        };
        let tokens = &self.tokens;
        assert!(is_same, "{:#?}\nsimulated: {said:?}\nreal: {told:?}\n{tokens:?}", self.said);
    }

    /// Tokens are the same if they stand in the same order.
    fn is_same_number(&mut self, one: i64, other: i64, blur: u64) -> bool {
        if one < TOKEN_MIN || other < TOKEN_MIN {
            return one.abs_diff(other) <= if one < 0 || other < 0 { 0 } else { blur };
        }
        if let Some(known) = self.tokens.insert(one, other) {
            return known == other;
        }
        let mut before = self.tokens.range(..one).map(|(_, real)| *real);
        let mut after = self.tokens.range(one + 1..).map(|(_, real)| *real);
        before.next_back().is_none_or(|real| real < other)
            && after.next().is_none_or(|real| real > other)
    }

    fn compare_keys(&mut self) {
        /// What came due while one of them was looked at is done by both before the next look.
        const LOOKS: usize = 3;
        let mut differences = Vec::new();
        for _ in 0..LOOKS {
            let now = self.now();
            self.go_on_to(now);
            differences.clear();
            for db in 0..2 {
                self.control.ask(&format!("SELECT {db}"));
                for name in ["k0", "k1"] {
                    differences.extend(self.compare_key(db, name).err());
                }
            }
            self.control.ask("SELECT 0");
            if differences.is_empty() || self.is_unsure {
                return;
            }
            self.settle();
        }
        panic!("{:#?}\n{differences:#?}", self.said);
    }

    fn compare_key(&mut self, db: i32, name: &str) -> Result<(), String> {
        self.compared += 1;
        let key: Key = name.as_bytes().into();
        let watcher = ClientId::from(WATCHER);
        if let Some(conn) = self.simulated.conns.get_mut(&watcher) {
            conn.db = db;
        }
        let line = format!("PEXPIRETIME {name}");
        self.simulated.run(watcher, &words(&line));
        let said = self.simulated.out.iter().rposition(|(client, _)| *client == watcher);
        let Some((_, Out::Said(Said::Int(one)))) = said.map(|at| self.simulated.out.remove(at))
        else {
            panic!("the simulated server does not say when {name} expires")
        };
        let other = self.control.number(&line);
        // Its millisecond may end between the server's word of the time and its command.
        let blur = self.blur.get(&key).copied().unwrap_or(0).saturating_add(1);
        if !self.is_same_number(one, other, blur) && !self.is_too_late() {
            return Err(format!("{line} in {db}: simulated {one}, real {other}, {blur} allowed"));
        }
        let slot = self.simulated.visible(db, &key);
        if slot.is_some_and(|slot| slot.lock().is_none()) {
            return Ok(());
        }
        let info = self.control.ask(&format!("RLOCK.INFO {name}"));
        let (ours, theirs) = (self.shown(db, &key), LockView::read(&info).line());
        if ours != theirs && !self.is_too_late() {
            return Err(format!("{name} in {db}: simulated {ours}, real {theirs}"));
        }
        let (ours, theirs) = (self.queue(db, &key), self.control.queue(name));
        if ours != theirs && !self.is_too_late() {
            return Err(format!("queue of {name} in {db}: simulated {ours}, real {theirs}"));
        }
        Ok(())
    }

    /// A deadline came in the midst of the comparison.
    fn is_too_late(&mut self) -> bool {
        let now_ms = self.now().ms().get() + UNSURE_MS;
        let next = self.next_moment(self.simulated.now_ms());
        self.is_unsure |= next.is_some_and(|next| next <= now_ms);
        self.is_unsure
    }

    /// As [`LockView::line`].
    fn shown(&self, db: i32, key: &Key) -> String {
        let now = self.simulated.now;
        let Some(lock) = self.simulated.visible(db, key).and_then(Slot::lock) else {
            return "free:".to_owned();
        };
        let word = |mode| if mode == Mode::Write { "write" } else { "read" };
        let mut holds: Vec<_> =
            lock.holds_at(now).map(|(owner, mode, hold)| (owner, mode, hold.depth)).collect();
        holds.sort_by(|a, b| (a.0, word(b.1)).cmp(&(b.0, word(a.1))));
        let lines: Vec<String> = holds
            .iter()
            .map(|(owner, mode, depth)| format!("{} {} {depth}", owner.escape_ascii(), word(*mode)))
            .collect();
        let mode = lock.mode_at(now).map_or("free", word);
        format!("{mode}: {}", lines.join(", ")).trim_end().to_owned()
    }

    fn queue(&self, db: i32, key: &Key) -> String {
        let (volatile, now) = (self.simulated.state.manager.volatile(db, key), self.simulated.now);
        let free = Lock::default();
        let lock = self.simulated.visible(db, key).and_then(Slot::lock).unwrap_or(&free);
        let has_void_turns = volatile.is_some_and(|volatile| lock.has_void_turns(volatile, now));
        let entries = volatile.into_iter().flat_map(|volatile| volatile.queue.iter());
        let shown = entries.map(|(entry, is_turn)| {
            let mode = if entry.mode == Mode::Write { "write" } else { "read" };
            let kind = if entry.kind == Kind::Ticket { "queue" } else { "block" };
            let turn = if is_turn && !has_void_turns { " turn" } else { "" };
            format!("{} {mode} {kind}{turn}", entry.owner.as_bytes().escape_ascii())
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    fn compare_events(&mut self) {
        let heard = self.listener.heard(&mut self.control);
        let published: Vec<String> = std::mem::take(&mut self.simulated.events)
            .into_iter()
            .map(|(db, key, event)| {
                let place = if db == 0 { String::new() } else { format!(" @{db}") };
                format!("{event} {}{place}", String::from_utf8_lossy(&key))
            })
            .collect();
        self.compared += 1 + heard.len() as u64;
        let [published, heard] = [published, heard].map(|events| in_order(events, &self.said));
        assert_eq!(published, heard, "{:#?}\nleft: simulated, right: real", self.said);
    }
}
