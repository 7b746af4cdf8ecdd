//! A real server and a simulated one that get the same commands, at the same time by the real one's
//! clock.
//!
//! The simulated one is set to the moment at which the real one carried out a command, to the
//! millisecond. What a server does by itself it does some milliseconds after it is due: the keys
//! that this concerns are compared with as much allowance ([`Twins::blur`]), and no command is sent
//! so near to a deadline that it would matter.

mod compare;

use std::collections::BTreeMap;

use rlock_core::{ClientId, Now};
use rlock_simulation::fault::Fault;
use rlock_simulation::keyspace::{Key, Slot};
use rlock_simulation::server::Server as Simulated;
use rlock_simulation::words::words;

use super::choice::{CHANNELS, CONNECTIONS, Deed};
use super::{is_on_databases, time_of};
use rlock_testkit::{Client, Listener, Server, Subscriber, Version, Waiter, until};

/// The least time between a command and a deadline, in milliseconds.
const MARGIN_MS: u64 = 60;
/// The longest time to wait; a longer one means that the machine stood still.
const APART_MS_MAX: u64 = 500;
/// Nearer to a deadline than this, nobody knows what came first.
const UNSURE_MS: u64 = 3;
/// How long the module may take to see that the gate is open again, in milliseconds.
const RETRY_MS: u64 = 50;
/// Smaller numbers do not count as tokens.
const TOKEN_MIN: i64 = 1_000_000_000_000_000;

/// The locks.
const NAMES: [&str; 3] = ["k0", "k1", "k2"];

/// The simulated server's number for the connection that looks at keys.
const WATCHER: u64 = 1_000_000;

/// Both of them.
pub struct Twins {
    real: Server,
    control: Client,
    listener: Listener,
    simulated: Simulated,
    connections: Vec<(Waiter, ClientId)>,
    /// The subscriber of each channel, and whether it has unsubscribed.
    pub(super) subscribers: Vec<(Subscriber, bool)>,
    last_client: u64,
    tokens: BTreeMap<i64, i64>,
    /// The simulated server's newest token before the present action.
    newest: i64,
    /// How far apart times may be, by key, in milliseconds.
    blur: BTreeMap<Key, u64>,
    /// Whether a server closed a connection because of this action, since it lost its session.
    has_closed: bool,
    /// What was sent and replied, to be read if there is a difference.
    said: Vec<String>,
    /// Whether the machine was so slow that a deadline came during an action. Each server may have
    /// dealt with either of them first.
    pub is_unsure: bool,
    /// How many replies, keys and events were compared.
    pub compared: u64,
}

/// If anything went wrong, the commands that led to it are printed.
impl Drop for Twins {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}", self.said);
        }
    }
}

fn channel(number: usize) -> String {
    format!("c{number}")
}

/// The simulated server's number of a channel's subscriber.
fn subscriber_number(number: usize) -> ClientId {
    ClientId::from(2 * WATCHER + number as u64)
}

fn client_number(client: ClientId) -> usize {
    usize::try_from(client.get()).unwrap()
}

impl Twins {
    /// Two new servers.
    pub fn new() -> Twins {
        let settings = ["notify-keyspace-events", "KEA", "rlock.max-depth", "4"];
        let real = Server::with(&[&settings[..], &["enable-debug-command", "yes"]].concat());
        let mut control = real.client();
        // Expired keys are removed when somebody looks at them, and not when the server chooses.
        control.ask("DEBUG SET-ACTIVE-EXPIRE 0");
        let mut simulated = Simulated::new(Fault::None);
        simulated.now = time_of(&control.ask("TIME"));
        simulated.set_role(true, 1);
        simulated.connect(ClientId::from(WATCHER), &"default".into());
        let is_late_valkey = real.version() >= Version::Valkey(8, 1);
        simulated.conditions.expires_at_once = is_late_valkey;
        simulated.conditions.misses_moved_strings = is_late_valkey;
        let listener = Listener::to(&real);
        let mut twins = Twins {
            real,
            control,
            listener,
            simulated,
            connections: Vec::new(),
            subscribers: Vec::new(),
            last_client: 0,
            tokens: BTreeMap::new(),
            newest: 0,
            blur: BTreeMap::new(),
            has_closed: false,
            said: Vec::new(),
            is_unsure: false,
            compared: 0,
        };
        for number in 0..CHANNELS {
            let subscriber = Subscriber::to(&twins.real, &channel(number));
            twins.subscribers.push((subscriber, false));
            let client = subscriber_number(number);
            twins.simulated.connect(client, &"default".into());
            twins.simulated.run(client, &words(&format!("SSUBSCRIBE {}", channel(number))));
        }
        twins.simulated.out.clear();
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

    /// Whether this connection is blocked, as far as the simulated server knows.
    pub fn is_blocked(&self, at: usize) -> bool {
        !self.simulated.reads(self.connections[at].1)
    }

    /// Whether somebody waits for several locks while others wait, too: which of them reaches a
    /// lock first depends on the order in which the locks are swept.
    pub fn depends_on_order(&self) -> bool {
        let manager = &self.simulated.state.manager;
        let totals = manager.totals();
        manager.group_totals()[0] > 0 && totals.waiters + totals.tickets > 1
    }

    /// Whether the order is open in which this action did something at different locks. A command
    /// on whole databases has them swept by their places in the manager. Redis 7.0 closes a
    /// connection that lost its session to another client's command at once, before the sweep, and
    /// later servers close it after the sweep.
    fn is_order_open(&self) -> bool {
        self.has_closed || self.said.last().is_some_and(|deed| is_on_databases(deed))
    }

    fn now(&mut self) -> Now {
        time_of(&self.control.ask("TIME"))
    }

    /// Does it on both servers, and compares the results.
    pub fn carry_out(&mut self, deed: Deed) {
        self.keep_away_from_deadlines();
        self.said.push(format!("{deed:?}"));
        self.has_closed = false;
        self.newest = self.tokens.last_key_value().map_or(0, |(token, _)| *token);
        match deed {
            Deed::Send(at, line) => self.send(at, &[line]),
            Deed::Together(at, mut lines) => {
                lines.insert(0, "MULTI".into());
                lines.push("EXEC".into());
                self.send(at, &lines);
            }
            Deed::Subscriber(number) => self.subscriber_leaves_or_comes(number),
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
            self.compare_counts();
        }
    }

    /// A connection sends these commands, in one piece.
    fn send(&mut self, at: usize, lines: &[String]) {
        if self.is_unsure {
            return;
        }
        let known: Vec<(i64, i64)> = lines.iter().map(|line| self.known_to(line)).collect();
        let with = |line: &String, known: i64| line.replace("known", &known.to_string());
        let all = lines.iter().zip(&known);
        let really: Vec<String> = all.map(|(line, (_, known))| with(line, *known)).collect();
        let (real, client) = &mut self.connections[at];
        let client = *client;
        let said: Vec<&str> =
            std::iter::once("TIME").chain(really.iter().map(String::as_str)).collect();
        real.say_all(&said);
        let begun = time_of(&real.answer());
        self.go_on_to(begun);
        for (line, (known, _)) in lines.iter().zip(&known) {
            self.simulated.run(client, &words(&with(line, *known)));
        }
        self.turn_simulated();
        if self.is_too_late() {
            return;
        }
        self.take_out();
        self.lasted_since(begun);
    }

    /// The subscriber of a channel leaves it, or comes back.
    fn subscriber_leaves_or_comes(&mut self, number: usize) {
        let begun = self.now();
        self.go_on_to(begun);
        let (subscriber, has_left) = &mut self.subscribers[number];
        let verb = if *has_left { "SSUBSCRIBE" } else { "SUNSUBSCRIBE" };
        match *has_left {
            true => subscriber.come(&channel(number)),
            false => subscriber.leave(&channel(number)),
        }
        *has_left = !*has_left;
        let line = format!("{verb} {}", channel(number));
        self.simulated.run(subscriber_number(number), &words(&line));
        self.simulated.out.pop();
        self.lasted_since(begun);
    }

    /// A token that a client may know: that of a hold of the first lock that it names, or the
    /// newest. Returns the simulated server's and the real one's.
    fn known_to(&self, line: &str) -> (i64, i64) {
        let key = line.split(' ').find(|word| word.starts_with('k') && *word != "known");
        let key: Key = key.unwrap_or_default().as_bytes().into();
        let lock = self.simulated.keys.get(0, &key).and_then(Slot::lock);
        let held = lock.into_iter().flat_map(rlock_core::Lock::holds).next();
        let held = held.map(|(.., hold)| hold.token.get().cast_signed());
        let held = held.and_then(|token| Some((token, *self.tokens.get(&token)?)));
        let newest = self.tokens.last_key_value().map(|(one, other)| (*one, *other));
        held.or(newest).unwrap_or((0, 0))
    }

    /// What was done since then happened within another millisecond than assumed.
    fn lasted_since(&mut self, begun: Now) {
        let ended = self.now();
        self.blur_keys(ended.ms().get() - begun.ms().get(), |_| true);
    }

    fn hang_up(&mut self, at: usize) {
        let begun = self.now();
        self.go_on_to(begun);
        let new = self.connected();
        let (real, client) = std::mem::replace(&mut self.connections[at], new);
        let id = real.id();
        drop(real);
        until(5_000, || !rlock_testkit::is_connected(&mut self.control, id));
        self.simulated.free(client);
        self.turn_simulated();
        self.lasted_since(begun);
    }

    fn unblock(&mut self, at: usize, with_error: bool) {
        let (real, client) = &self.connections[at];
        let (id, client) = (real.id(), *client);
        let begun = self.now();
        self.go_on_to(begun);
        let how = if with_error { " ERROR" } else { "" };
        let told = self.control.number(&format!("CLIENT UNBLOCK {id}{how}"));
        if !self.is_too_late() {
            assert_eq!(told == 1, self.is_blocked(at));
            self.simulated.unblock(client, with_error);
            self.turn_simulated();
            self.lasted_since(begun);
        }
    }

    fn too_few_replicas(&mut self, ms: u64) {
        self.control.ask("CONFIG SET min-replicas-to-write 1");
        self.simulated.conditions.min_replicas = 1;
        let until_ms = self.now().ms().get() + ms;
        self.pass_until(until_ms);
        if let Some(at) = (0..CONNECTIONS).find(|at| !self.is_blocked(*at)) {
            self.keep_away_from_deadlines();
            self.send(at, &["RLOCK.ACQUIRE k0 o0".into()]);
            self.settle();
        }
        self.control.ask("CONFIG SET min-replicas-to-write 0");
        self.simulated.conditions.min_replicas = 0;
        let until_ms = self.now().ms().get() + 2 * RETRY_MS;
        self.pass_until(until_ms);
    }

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
        // One of several holds has expired for whoever looks, although nothing is due.
        let locks = keys.iter().filter_map(|(_, _, slot)| slot.lock());
        let deadlines = locks.flat_map(|lock| lock.holds().map(|(_, _, hold)| hold.deadline.get()));
        let deadline = deadlines.filter(|at| *at >= after).min();
        [alarm, retry, expiry, deadline].into_iter().flatten().min()
    }

    fn keep_away_from_deadlines(&mut self) {
        loop {
            let now_ms = self.now().ms().get();
            let apart = MARGIN_MS + self.blur.values().max().copied().unwrap_or(0);
            // A machine that stood still for so long is not waited for.
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

    /// By then, both have done what was due.
    fn pass_until(&mut self, until_ms: u64) {
        let control = &mut self.control;
        until(10_000, || time_of(&control.ask("TIME")).ms().get() > until_ms);
        self.settle_real();
        let now = self.now();
        self.go_on_to(now);
    }

    /// The simulated server does what is due by then, and its clock is set to this time.
    fn go_on_to(&mut self, now: Now) {
        let mut at = self.simulated.now_ms();
        while let Some(next) = self.next_moment(at).filter(|next| *next < now.ms().get()) {
            self.simulated.now = Now::from_ms(next.max(at));
            at = next.max(at) + 1;
            let late = now.ms().get() - next;
            self.is_unsure |= late < UNSURE_MS;
            self.turn_late(late);
        }
        let next = self.next_moment(now.ms().get());
        self.is_unsure |= next.is_some_and(|next| next < now.ms().get() + UNSURE_MS);
        self.simulated.now = now;
    }

    fn blur_keys(&mut self, ms: u64, is_touched: impl Fn(&Key) -> bool) {
        for name in NAMES {
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

    /// The simulated server does what is due, which the real one did up to this many milliseconds
    /// later.
    fn turn_late(&mut self, ms: u64) {
        let (before, retries) = (self.simulated.keys.clone(), self.simulated.state.is_retrying());
        self.turn_simulated();
        // Nobody knows where in its interval the real server retries, nor when its pause ends.
        let ms = if retries { ms.max(2 * RETRY_MS) } else { ms };
        let after = self.simulated.keys.clone();
        let is_touched = |key: &Key| (0..2).any(|db| before.get(db, key) != after.get(db, key));
        self.blur_keys(ms, is_touched);
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
        self.turn_late(0);
        if !self.is_unsure {
            self.take_out();
            self.expect_silence();
        }
    }
}
