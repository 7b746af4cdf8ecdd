//! A client of the lock, which records its requests, their times and their replies.

mod told;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use redis::{RedisError, Value};

use crate::clock::{Stop, now_ns};
use crate::history::{Ask, Asked, Mode, Op, Reply, Wait};
use crate::words::{self, Words, packed};
use rlock_testkit::{flat_map, integer, items, text, until};
pub use told::Cut;
use told::Ears;

/// The longest time for which a server of a run is unavailable.
const AWAY_MS_MAX: u64 = 20_000;

/// A part of the error to a command of a session that has lost its hold.
const LOST_SESSION: &str = "rlock.session-was-lost";

/// After an error that says that nobody may write for now, a client asks again after this time.
const REFUSED_MS: u64 = 20;

/// The URL for a key and an actor's number.
type UrlOf = dyn Fn(&str, u32) -> String + Send + Sync;

/// What the clients know about the current fault.
pub struct Site {
    /// Where the lock of a key is now, as this actor sees it.
    pub url_of: Box<UrlOf>,
    /// Whether a hold counts only when a replica has it, by WAIT.
    pub waits_for_replica: bool,
    /// The lease of clients that have no reason for another one.
    pub lease_ms: u64,
    /// Which kind of lock it is.
    pub words: Words,
    /// Whether there are two primaries: then, long holds make overlaps visible.
    pub is_cut: Arc<AtomicBool>,
}

impl Site {
    /// One server, which stays the same.
    pub fn fixed(url: String) -> Site {
        let url_of = Box::new(move |_: &str, _| url.clone());
        let (words, is_cut) = (words::rlock, Arc::default());
        Site { url_of, waits_for_replica: false, lease_ms: 30_000, words, is_cut }
    }

    /// One server at a time, which may be replaced by another one.
    pub fn moving(url: Arc<RwLock<String>>) -> Site {
        let url_of = Box::new(move |_: &str, _| url.read().unwrap().clone());
        Site { url_of, waits_for_replica: true, lease_ms: 3000, ..Site::fixed(String::new()) }
    }
}

/// Where operations are recorded: here, or in another process to which they are sent as they
/// happen.
pub enum Notes {
    Kept(Arc<Mutex<Notebook>>),
    Told,
}

/// One actor's operations, and the one that has no reply yet.
#[derive(Default)]
pub struct Notebook {
    pub ops: Vec<Op>,
    pub pending: Option<Op>,
}

struct Link {
    url: String,
    connection: redis::Connection,
    id: i64,
}

/// A client that does one thing at a time: its name and its connection.
pub struct Actor {
    pub number: u32,
    pub rng: fastrand::Rng,
    pub stop: Arc<Stop>,
    site: Arc<Site>,
    link: Option<Link>,
    ears: Option<Ears>,
    /// How many requests with TELL it has sent.
    tells: u64,
    /// How many connections it has had.
    links: u32,
    notes: Notes,
    /// Part of the owner's name: after a client has hung up, it is another owner.
    life: u32,
    /// The tokens of its holds.
    held: BTreeMap<(String, Mode), i64>,
    /// Keys for which it does not know whether it holds the lock.
    unsure: Vec<String>,
    marks: u64,
}

impl Actor {
    pub fn new(number: u32, seed: u64, site: Arc<Site>, stop: Arc<Stop>, notes: Notes) -> Actor {
        let rng = fastrand::Rng::with_seed(seed.wrapping_add(u64::from(number)));
        Actor {
            number,
            rng,
            stop,
            site,
            link: None,
            ears: None,
            tells: 0,
            links: 0,
            notes,
            life: 0,
            held: BTreeMap::new(),
            unsure: Vec::new(),
            marks: 0,
        }
    }

    /// Its name as an owner.
    pub fn owner(&self) -> String {
        format!("a{}.{}", self.number, self.life)
    }

    /// Asks for WRITE with the site's lease, without waiting: workloads change this.
    pub fn ask(&self) -> Ask {
        let lease_ms = self.site.lease_ms;
        let (mode, wait) = (Mode::Write, Wait::No);
        let (upgrade, session, depth, limit, acks) = (false, false, None, None, 0);
        Ask { mode, lease_ms, wait, upgrade, session, depth, limit, acks }
    }

    /// Whether there are two primaries.
    pub fn is_cut(&self) -> bool {
        self.site.is_cut.load(Ordering::Relaxed)
    }

    /// The token of its hold, as far as it knows.
    pub fn token(&self, key: &str, mode: Mode) -> Option<i64> {
        self.held.get(&(key.to_owned(), mode)).copied()
    }

    pub fn acquire(&mut self, key: &str, ask: Ask) -> Reply {
        let reply = self.tell(key, Asked::Acquire(ask));
        if let Reply::Token(token) = reply {
            self.held.insert((key.to_owned(), ask.mode), token);
        }
        reply
    }

    /// Releases one level.
    pub fn release(&mut self, key: &str, mode: Mode) -> Reply {
        self.release_to(key, mode, None)
    }

    /// Releases down to that depth, or one level.
    pub fn release_to(&mut self, key: &str, mode: Mode, down_to: Option<i64>) -> Reply {
        let token = self.token(key, mode);
        let reply = self.tell(key, Asked::Release { mode, down_to, token });
        if matches!(reply, Reply::Number(0) | Reply::NotHeld) {
            self.held.remove(&(key.to_owned(), mode));
        }
        reply
    }

    /// Extends its hold by the usual lease.
    pub fn renew(&mut self, key: &str, mode: Mode) -> Reply {
        self.renew_for(key, mode, self.site.lease_ms)
    }

    /// Extends its hold; with its token, so that a lost hold is noticed.
    pub fn renew_for(&mut self, key: &str, mode: Mode, lease_ms: u64) -> Reply {
        let Some(token) = self.token(key, mode) else { return Reply::NotHeld };
        self.tell(key, Asked::Renew { mode, lease_ms, token, acks: 0 })
    }

    /// Renews its hold by the usual lease, with ACKS from that many replicas.
    pub fn renew_acked(&mut self, key: &str, mode: Mode, acks: u32) -> Reply {
        let Some(token) = self.token(key, mode) else { return Reply::NotHeld };
        self.tell(key, Asked::Renew { mode, lease_ms: self.site.lease_ms, token, acks })
    }

    pub fn cancel(&mut self, key: &str) -> Reply {
        self.tell(key, Asked::Cancel)
    }

    /// Asks who waits.
    pub fn info(&mut self, key: &str) -> Reply {
        self.tell(key, Asked::Info)
    }

    /// Asks how long its hold lasts, as the server sees it.
    pub fn look(&mut self, key: &str, mode: Mode) -> Reply {
        let Some(token) = self.token(key, mode) else { return Reply::NotHeld };
        self.tell(key, Asked::Look { mode, token })
    }

    /// Adds one to the counter that `key` guards, if its token is still valid.
    pub fn count(&mut self, key: &str, token: i64) -> Reply {
        self.tell(key, Asked::Count { token })
    }

    /// Closes its connection without releasing, and comes back as another owner.
    pub fn hang_up(&mut self, key: &str) {
        let sent_ns = now_ns();
        let id = self.link.take().map_or(0, |link| link.id);
        self.ears = None;
        self.write_down(key, id, Asked::HangUp, sent_ns, Reply::Nil, None);
        self.life += 1;
        self.held.clear();
        self.unsure.clear();
    }

    /// Becomes another owner instead of `mend`, which would wait until a replica has its release.
    pub fn start_anew(&mut self) {
        let key = self.unsure[0].clone();
        self.hang_up(&key);
    }

    /// Sends a request that waits, and hangs up before the reply.
    pub fn ask_and_hang_up(&mut self, key: &str, ask: Ask, after_ms: u64) {
        let asked = Asked::Acquire(ask);
        let command = (self.site.words)(key, &self.owner(), &asked);
        let link = self.linked(key);
        let id = link.id;
        let sent_ns = now_ns();
        link.connection.send_packed_command(&command.get_packed_command()).ok();
        self.stop.within(after_ms);
        self.write_down(key, id, asked, sent_ns, Reply::Lost, None);
        self.hang_up(key);
    }

    /// Sends the same command twice in one write, as a client library does that missed a reply.
    pub fn acquire_twice(&mut self, key: &str, ask: Ask) -> [Reply; 2] {
        let replies = self.tell_twice(key, Asked::Acquire(ask));
        if let [_, Reply::Token(token)] = replies {
            self.held.insert((key.to_owned(), ask.mode), token);
        }
        replies
    }

    /// Releases down to `depth`, and sends that twice. Without a token: then the second one is no
    /// error.
    pub fn release_twice(&mut self, key: &str, mode: Mode, depth: i64) -> [Reply; 2] {
        let asked = Asked::Release { mode, down_to: Some(depth), token: None };
        let replies = self.tell_twice(key, asked);
        if depth == 0 && matches!(replies[1], Reply::Number(0)) {
            self.held.remove(&(key.to_owned(), mode));
        }
        replies
    }

    /// Before anything new: finds out which holds it has where a reply was lost, and releases them.
    pub fn mend(&mut self) {
        self.unsure.sort();
        self.unsure.dedup();
        for key in std::mem::take(&mut self.unsure) {
            // This comes first, so that nothing is granted anymore.
            self.cancel(&key);
            for mode in [Mode::Write, Mode::Read] {
                self.renew(&key, mode);
                self.held.remove(&(key.clone(), mode));
            }
            for mode in [Mode::Write, Mode::Read] {
                self.release_to(&key, mode, Some(0));
            }
        }
    }

    /// Whether a reply was lost, and `mend` has not been called since.
    pub fn is_unsure(&self) -> bool {
        !self.unsure.is_empty()
    }

    /// A further connection, if there is a server.
    pub fn ears(&self, key: &str) -> Option<redis::Connection> {
        let client = redis::Client::open((self.site.url_of)(key, self.number)).unwrap();
        client.get_connection().ok()
    }

    fn tell(&mut self, key: &str, asked: Asked) -> Reply {
        let command = (self.site.words)(key, &self.owner(), &asked);
        let sent_ns = self.announce(key, &asked);
        let link = self.linked(key);
        let id = link.id;
        let mut reply = reply_to(&asked, command.query(&mut link.connection));
        let received_ns = now_ns();
        let secured_ns = self.secure(&asked, &mut reply);
        self.write(key, id, asked, [sent_ns, received_ns], reply.clone(), secured_ns);
        self.consider(key, &reply);
        if self.rng.u8(..8) == 0 {
            self.echo(key);
        }
        reply
    }

    fn tell_twice(&mut self, key: &str, asked: Asked) -> [Reply; 2] {
        let command = (self.site.words)(key, &self.owner(), &asked);
        let sent_ns = self.announce(key, &asked);
        let link = self.linked(key);
        let id = link.id;
        let bytes = command.get_packed_command().repeat(2);
        let sent = link.connection.send_packed_command(&bytes);
        let mut replies = [(); 2].map(|()| {
            let received = sent.clone().and_then(|()| link.connection.recv_response());
            let received = received.and_then(Value::extract_error);
            (reply_to(&asked, received), now_ns())
        });
        let [(first, _), (second, _)] = &mut replies;
        let secured_ns = self.secure(&asked, second);
        if *second == Reply::Lost {
            *first = Reply::Lost;
        }
        for (reply, received_ns) in &mut replies {
            let times = [sent_ns, *received_ns];
            self.write(key, id, asked.clone(), times, reply.clone(), secured_ns);
            self.consider(key, reply);
        }
        replies.map(|(reply, _)| reply)
    }

    /// Checks that each request so far got exactly one reply: if so, the next reply is that of an
    /// ECHO.
    pub fn echo(&mut self, key: &str) {
        self.marks += 1;
        let mark = format!("mark-{}-{}", self.number, self.marks);
        let Some(link) = &mut self.link else { return };
        let id = link.id;
        let sent_ns = now_ns();
        let received = packed(&format!("ECHO {mark}")).query::<Value>(&mut link.connection);
        let reply = match received {
            Ok(Value::BulkString(said)) if said == mark.as_bytes() => Reply::Number(1),
            Ok(other) => Reply::Error(format!("an ECHO was answered {other:?}")),
            Err(error) => of_error(&error),
        };
        self.write_down(key, id, Asked::Echo, sent_ns, reply.clone(), None);
        self.consider(key, &reply);
    }

    /// If a primary may die, waits until a replica has what was done. Returns when that was. A
    /// release that may be on no replica may be undone with the primary, so it counts as lost.
    fn secure(&mut self, asked: &Asked, reply: &mut Reply) -> Option<u64> {
        let is_release = matches!((asked, &*reply), (Asked::Release { .. }, Reply::Number(_)));
        let is_change = is_release || matches!(reply, Reply::Token(_) | Reply::Number(1));
        if !is_change || !self.site.waits_for_replica {
            return None;
        }
        if asked.is_acked() {
            return Some(now_ns());
        }
        let link = self.link.as_mut()?;
        let replicas = packed("WAIT 1 500").query::<i64>(&mut link.connection);
        if matches!(replicas, Ok(1..)) {
            return Some(now_ns());
        }
        if replicas.is_err() {
            self.link = None;
        }
        if is_release {
            *reply = Reply::Lost;
        }
        None
    }

    /// Notes what an error says about its holds.
    fn consider(&mut self, key: &str, reply: &Reply) {
        let is_trouble = matches!(reply, Reply::Lost | Reply::Never | Reply::Error(_));
        if is_trouble {
            self.link = None;
            self.unsure.push(key.to_owned());
            self.unsure.extend(self.held.keys().map(|(key, _)| key.clone()));
        }
        if reply.is_refusal() {
            self.stop.within(REFUSED_MS);
        }
    }

    /// The connection to the server of the lock `key`.
    #[track_caller]
    fn linked(&mut self, key: &str) -> &mut Link {
        until(AWAY_MS_MAX, || {
            let url = (self.site.url_of)(key, self.number);
            if self.link.as_ref().is_none_or(|link| link.url != url) {
                self.links += 1;
                self.link = connected(&url, self.number).ok();
            }
            self.link.is_some()
        });
        self.link.as_mut().unwrap()
    }

    /// Records a request before it is sent, in case there is no reply. Returns the time.
    fn announce(&mut self, key: &str, asked: &Asked) -> u64 {
        let id = self.linked(key).id;
        let sent_ns = now_ns();
        self.write(key, id, asked.clone(), [sent_ns, 0], Reply::Never, None);
        sent_ns
    }

    fn write_down(
        &mut self,
        key: &str,
        id: i64,
        asked: Asked,
        sent_ns: u64,
        reply: Reply,
        secured_ns: Option<u64>,
    ) {
        self.write(key, id, asked, [sent_ns, now_ns()], reply, secured_ns);
    }

    fn write(
        &mut self,
        key: &str,
        connection: i64,
        asked: Asked,
        [sent_ns, received_ns]: [u64; 2],
        reply: Reply,
        secured_ns: Option<u64>,
    ) {
        let (actor, owner, key) = (self.number, self.owner(), key.to_owned());
        let op = Op {
            actor,
            connection,
            link: self.links,
            key,
            owner,
            asked,
            sent_ns,
            received_ns,
            reply,
            secured_ns,
        };
        match &mut self.notes {
            Notes::Kept(notebook) => {
                let mut notebook = notebook.lock().unwrap();
                if received_ns == 0 {
                    notebook.pending = Some(op);
                } else {
                    notebook.pending = None;
                    notebook.ops.push(op);
                }
            }
            Notes::Told => {
                let line = serde_json::to_string(&op).unwrap() + "\n";
                std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
            }
        }
    }
}

fn connected(url: &str, number: u32) -> Result<Link, RedisError> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    // Without a timeout: with one, a signal to this process would end the wait with an error.
    // Clients without a reply are found when the crowd has to end.
    packed(&format!("CLIENT SETNAME actor-{number}")).exec(&mut connection)?;
    let id = packed("CLIENT ID").query(&mut connection)?;
    Ok(Link { url: url.to_owned(), connection, id })
}

fn reply_to(asked: &Asked, received: Result<Value, RedisError>) -> Reply {
    match (asked, received) {
        (_, Err(error)) => of_error(&error),
        (Asked::Acquire(_), Ok(Value::Int(token))) => Reply::Token(token),
        (Asked::Acquire(_) | Asked::Count { .. }, Ok(Value::Nil)) => Reply::Nil,
        (Asked::Info, Ok(reply)) => Reply::Waiters(waiters(&reply)),
        (Asked::Look { mode, token }, Ok(reply)) => ttl_of(&reply, *mode, *token),
        (_, Ok(Value::Int(number))) => Reply::Number(number),
        (_, Ok(other)) => Reply::Error(format!("it was told {other:?}")),
    }
}

fn of_error(error: &RedisError) -> Reply {
    match error.code() {
        // The error on a connection that is being closed.
        Some(_) if error.detail().is_some_and(|text| text.contains(LOST_SESSION)) => Reply::Lost,
        Some("NOTHELD") => Reply::NotHeld,
        Some("DEADLOCK") => Reply::Deadlock,
        Some(code) => Reply::Error(format!("{code} {}", error.detail().unwrap_or_default())),
        None => Reply::Lost,
    }
}

/// How long the hold with this token lasts.
fn ttl_of(info: &Value, mode: Mode, token: i64) -> Reply {
    let fields = flat_map(info);
    let mut holds = items(&fields["holders"]).iter().map(flat_map);
    let is_meant = |hold: &BTreeMap<String, Value>| {
        integer(&hold["token"]) == token && text(&hold["mode"]).eq_ignore_ascii_case(mode.word())
    };
    holds.find(is_meant).map_or(Reply::NotHeld, |hold| Reply::Number(integer(&hold["ttl-ms"])))
}

fn waiters(info: &Value) -> Vec<String> {
    let fields = flat_map(info);
    let waiters = items(&fields["waiters"]).iter().map(flat_map);
    waiters.map(|waiter| text(&waiter["owner"])).collect()
}
