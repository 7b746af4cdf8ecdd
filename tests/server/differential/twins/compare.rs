//! Compares what both servers reply, publish and keep.

use std::collections::BTreeMap;

use redis::Value;
use rlock_core::{ClientId, Kind, Lock, Mode};
use rlock_simulation::keyspace::{Key, Slot};
use rlock_simulation::server::Server as Simulated;
use rlock_simulation::words::{Message, Out, Outcome, Said, words};

use super::super::{in_order, without_tokens};
use super::{NAMES, TOKEN_MIN, Twins, UNSURE_MS, WATCHER, client_number, subscriber_number};
use rlock_testkit::{LockView, is_connected};

impl Twins {
    /// Asserts that the real server replies what the simulated one replied.
    pub(super) fn take_out(&mut self) {
        let mut out: BTreeMap<usize, Vec<Out>> = BTreeMap::new();
        for (client, one) in std::mem::take(&mut self.simulated.out) {
            out.entry(client_number(client)).or_default().push(one);
        }
        let gets_closed = |client: &ClientId| {
            let all = out.get(&client_number(*client));
            all.is_some_and(|all| all.contains(&Out::Closed))
        };
        self.has_closed |= self.connections.iter().any(|(_, client)| gets_closed(client));
        self.compare_messages(&mut out);
        for at in 0..self.connections.len() {
            let client = self.connections[at].1;
            let Some(mut expected) = out.remove(&client_number(client)) else { continue };
            // An observer whose connection is about to be closed may get a reply first, but need
            // not.
            if let [.., Out::Said(Said::Array(_)), Out::Closed] = expected[..]
                && self.is_closed(at)
            {
                expected.remove(expected.len() - 2);
            }
            for one in expected {
                match one {
                    Out::Said(said) => {
                        let told = self.connections[at].0.reply();
                        self.compare_reply(&said, &told);
                    }
                    Out::Message(message) => panic!("{message:?} to who did not subscribe"),
                    Out::Closed => {
                        self.connections[at].0.expect_close();
                        self.connections[at] = self.connected();
                    }
                }
            }
        }
    }

    /// Asserts that a subscriber of the real server gets what the simulated one published.
    fn compare_messages(&mut self, out: &mut BTreeMap<usize, Vec<Out>>) {
        for number in 0..self.subscribers.len() {
            let all = out.remove(&client_number(subscriber_number(number))).unwrap_or_default();
            for one in all {
                let Out::Message(message) = one else { continue };
                let said = self.subscribers[number].0.heard_bytes();
                let heard = Message { channel: message.channel.clone(), text: said };
                let (ours, theirs) = (message.parts(), heard.parts());
                self.compared += 1;
                let is_same = match (&ours, &theirs) {
                    (Some((id, ours)), Some((other, theirs))) => {
                        id == other && self.is_same_outcome(ours, theirs)
                    }
                    _ => false,
                };
                assert!(is_same, "simulated: {message:?}\nreal: {heard:?}");
            }
        }
    }

    fn is_same_outcome(&mut self, ours: &Outcome, theirs: &Outcome) -> bool {
        match (ours, theirs) {
            (Outcome::Token(one, ms), Outcome::Token(other, real_ms)) => {
                let (ms, real_ms) = (ms.cast_signed(), real_ms.cast_signed());
                self.is_same_number(*one, *other, 0) && self.is_same_time(ms, real_ms)
            }
            (Outcome::Holder(one, owner), Outcome::Holder(other, real_owner)) => {
                self.is_same_number(*one, *other, 0) && owner == real_owner
            }
            (Outcome::Nil(ms), Outcome::Nil(real_ms)) => self.is_same_time(*ms, *real_ms),
            (Outcome::Error(one), Outcome::Error(other)) => {
                without_tokens(one) == without_tokens(other)
            }
            (ours, theirs) => ours == theirs,
        }
    }

    /// The clock advances in between.
    fn is_same_time(&mut self, one: i64, other: i64) -> bool {
        let blur = self.blur.values().max().copied().unwrap_or(0);
        let late = self.now().ms().get().saturating_sub(self.simulated.now_ms());
        self.is_same_number(one, other, blur + late + 1)
    }

    /// Compares how many wait for a message, how many have got theirs, and how many messages nobody
    /// heard.
    pub(super) fn compare_counts(&mut self) {
        let real = ["tells", "told", "untold"].map(|name| self.control.counted(name));
        let Simulated { state, tells, .. } = &self.simulated;
        let ours = [state.manager.tell_count() as u64, tells.told, tells.untold];
        self.compared += 1;
        assert_eq!(ours.map(u64::cast_signed), real, "left: simulated, right: real");
    }

    /// Whether this connection was closed, and has nothing to read.
    fn is_closed(&mut self, at: usize) -> bool {
        let id = self.connections[at].0.id();
        !is_connected(&mut self.control, id) && !self.connections[at].0.has_reply()
    }

    pub(super) fn expect_silence(&mut self) {
        for (connection, _) in &mut self.connections {
            if connection.has_reply() {
                panic!("unexpected: {:?}", connection.reply());
            }
        }
        self.subscribers.iter_mut().for_each(|(subscriber, _)| subscriber.expect_silence());
    }

    fn compare_reply(&mut self, said: &Said, told: &Result<Value, String>) {
        self.compared += 1;
        let is_same = match (said, told) {
            (Said::Nil, Ok(Value::Nil)) | (Said::Ok, Ok(Value::Okay)) => true,
            (Said::Waiting, Ok(Value::SimpleString(word))) => word == "WAITING",
            (Said::Queued, Ok(Value::SimpleString(word))) => word == "QUEUED",
            (Said::Bytes(one), Ok(Value::BulkString(other))) => one == other,
            (Said::Int(one), Ok(Value::Int(other))) => self.is_same_number(*one, *other, 0),
            (Said::Error(one), Err(other)) => without_tokens(one) == without_tokens(other),
            (Said::Array(ours), Ok(Value::Array(theirs))) if ours.len() == 2 => {
                self.is_same_pair(ours, theirs)
            }
            // The replies within that of a transaction.
            (Said::Array(ours), Ok(Value::Array(theirs))) => {
                assert_eq!(ours.len(), theirs.len(), "{ours:?} {theirs:?}");
                return ours.iter().zip(theirs).for_each(|(one, other)| {
                    self.compare_reply(one, &as_reply(other));
                });
            }
            _ => false,
        };
        let tokens = &self.tokens;
        assert!(is_same, "simulated: {said:?}\nreal: {told:?}\n{tokens:?}");
    }

    /// A token or none, and a time in milliseconds or an owner.
    fn is_same_pair(&mut self, ours: &[Said], theirs: &[Value]) -> bool {
        let ([our, our_last], [their, their_last]) = (ours, theirs) else {
            panic!("{ours:?} {theirs:?}")
        };
        let first = match (our, their) {
            (Said::Nil, Value::Nil) => true,
            (Said::Int(one), Value::Int(other)) => self.is_same_number(*one, *other, 0),
            _ => false,
        };
        first
            && match (our_last, their_last) {
                (Said::Int(ms), Value::Int(other)) => self.is_same_time(*ms, *other),
                (Said::Bytes(one), Value::BulkString(other)) => one == other,
                (Said::Nil, Value::Nil) => true,
                _ => false,
            }
    }

    /// Tokens are equal if they are in the same order. The tokens of one action may have no order:
    /// see [`Twins::is_order_open`].
    fn is_same_number(&mut self, one: i64, other: i64, blur: u64) -> bool {
        if one < TOKEN_MIN || other < TOKEN_MIN {
            return one.abs_diff(other) <= if one < 0 || other < 0 { 0 } else { blur };
        }
        if let Some(known) = self.tokens.insert(one, other) {
            return known == other;
        }
        let (earlier, later) = match self.is_order_open() && one > self.newest {
            true => (self.newest + 1, i64::MAX),
            false => (one, one + 1),
        };
        let mut before = self.tokens.range(..earlier).map(|(_, real)| *real);
        let mut after = self.tokens.range(later..).map(|(_, real)| *real);
        before.next_back().is_none_or(|real| real < other)
            && after.next().is_none_or(|real| real > other)
    }

    pub(super) fn compare_keys(&mut self) {
        /// What becomes due while one server is looked at is done by both before the next look.
        const LOOKS: usize = 3;
        let mut differences = Vec::new();
        for _ in 0..LOOKS {
            let now = self.now();
            self.go_on_to(now);
            differences.clear();
            for db in 0..2 {
                self.control.ask(&format!("SELECT {db}"));
                for name in NAMES {
                    differences.extend(self.compare_key(db, name).err());
                }
            }
            self.control.ask("SELECT 0");
            if differences.is_empty() || self.is_unsure {
                return;
            }
            self.settle();
        }
        panic!("{differences:#?}");
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
        // The millisecond may end between the server's report of the time and its command.
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

    /// Whether a deadline came during the comparison.
    pub(super) fn is_too_late(&mut self) -> bool {
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
            let kind = match entry.kind {
                Kind::Ticket => "queue",
                Kind::Told(_) => "tell",
                Kind::Group(waiter) if self.simulated.state.manager.is_told(waiter) => "tell",
                Kind::Group(_) | Kind::Blocked(_) => "block",
            };
            let turn = if is_turn && !has_void_turns { " turn" } else { "" };
            format!("{} {mode} {kind}{turn}", entry.owner.as_bytes().escape_ascii())
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn compare_events(&mut self) {
        let heard = self.listener.heard(&mut self.control);
        let published: Vec<String> = std::mem::take(&mut self.simulated.events)
            .into_iter()
            .map(|(db, key, event)| {
                let place = if db == 0 { String::new() } else { format!(" @{db}") };
                format!("{event} {}{place}", String::from_utf8_lossy(&key))
            })
            .collect();
        self.compared += 1 + heard.len() as u64;
        let is_open = self.is_order_open();
        let [published, heard] = [published, heard].map(|events| in_order(events, is_open));
        assert_eq!(published, heard, "left: simulated, right: real");
    }
}

/// A reply within that of a transaction.
fn as_reply(value: &Value) -> Result<Value, String> {
    match value {
        Value::SimpleString(line) if line.starts_with('-') => Err(line[1..].to_owned()),
        Value::ServerError(error) => {
            Err(format!("{} {}", error.code(), error.details().unwrap_or_default()))
        }
        other => Ok(other.clone()),
    }
}
