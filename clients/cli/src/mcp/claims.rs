//! The claims of one agent. Each is a hold with a session, in a task of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rlock_client::{All, Error, Locker, One, read};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::paths::{Root, covers, locks, merged};
use crate::place::{Place, Wanted};
use crate::servers::{Trouble, Where};
use crate::snapshot::Name;

/// A claim that was granted after a wait is released if the agent does not ask about it for this
/// long.
const UNSEEN: Duration = Duration::from_secs(60);
/// How long to look for a claim's place before its request has reached the server.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// How long to wait for releases when the agent has disconnected.
const PARTING: Duration = Duration::from_secs(2);
/// `RLOCK.MACQUIRE` takes at most this many keys.
const KEYS: usize = 128;

/// What an agent holds and waits for.
pub(crate) struct Claims {
    pub(crate) at: Where,
    pub(crate) root: Root,
    pub(crate) prefix: String,
    agent: Option<String>,
    locker: Locker,
    all: Mutex<(u64, BTreeMap<u64, Claim>)>,
}

#[derive(Clone)]
struct Claim {
    paths: BTreeSet<String>,
    keys: Vec<Wanted>,
    owner: String,
    state: watch::Receiver<State>,
    /// True ends it.
    end: watch::Sender<bool>,
    /// When the agent asked about it last.
    asked: watch::Sender<Instant>,
}

#[derive(Clone, Debug)]
enum State {
    Waiting,
    Held(u64),
    /// The claim has ended, and the agent has yet to learn why.
    Ended(String),
}

impl Claims {
    /// An agent without claims.
    ///
    /// # Errors
    /// If the words about the servers are wrong.
    pub(crate) fn new(
        at: &Where,
        root: Root,
        prefix: String,
        agent: Option<String>,
    ) -> Result<Claims, Trouble> {
        let locker = at.locker()?;
        Ok(Claims { at: at.clone(), root, prefix, agent, locker, all: Mutex::default() })
    }

    fn all(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Claim>)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a path below the root.
    pub(crate) fn key(&self, path: &str) -> String {
        format!("{}/{path}", self.prefix)
    }

    fn request(&self, paths: &BTreeSet<String>) -> Result<(All, Vec<Wanted>), Trouble> {
        let locks = locks(paths);
        if locks.len() > KEYS {
            return Err(format!(
                "these paths and the folders above them are {} keys, and a claim has at most {KEYS}: claim a folder",
                locks.len()
            ));
        }
        let wanted =
            |(path, is_write): (&String, &bool)| (Name(self.key(path).into_bytes()), *is_write);
        let keys = locks.iter().map(wanted).collect();
        let ones = locks.iter().map(|(path, is_write)| {
            let key = self.key(path);
            if *is_write { One::from(key) } else { read(key) }
        });
        let mut all = self.locker.all(ones).map_err(|error| error.to_string())?.session();
        if let Some(agent) = &self.agent {
            all = all.owner_prefix(agent);
        }
        Ok((all, keys))
    }

    /// Claims paths, and waits for them up to `patience`. The place in line is kept after that.
    ///
    /// # Errors
    /// What is wrong with the paths.
    pub(crate) async fn claim(
        &self,
        paths: &[String],
        patience: Duration,
    ) -> Result<Value, Trouble> {
        let named: BTreeSet<String> =
            paths.iter().map(|path| self.root.relative(path)).collect::<Result<_, _>>()?;
        if named.is_empty() {
            return Err("no path is named".into());
        }
        let mut wanted = merged(&named);
        let mine: Vec<(u64, BTreeSet<String>)> =
            self.all().1.iter().map(|(id, claim)| (*id, claim.paths.clone())).collect();
        for (id, claimed) in &mine {
            wanted.retain(|path| !claimed.iter().any(|mine| covers(mine, path)));
            if let Some(path) =
                wanted.iter().find(|path| claimed.iter().any(|mine| covers(path, mine)))
            {
                return Err(format!(
                    "claim {id} is of paths in '{path}': release it first, then claim '{path}'"
                ));
            }
        }
        if wanted.is_empty() {
            let ids: Vec<u64> = mine.iter().map(|(id, _)| *id).collect();
            return Ok(json!({ "state": "yours already", "claims": ids }));
        }
        // An agent that holds something does not wait for more: two agents could wait for each
        // other.
        let waits = mine.is_empty();
        let (request, keys) = self.request(&wanted)?;
        let request = if waits { request } else { request.wait(Duration::ZERO) };
        let id = self.begin(request, keys, wanted);
        let told = self.wait(id, patience).await;
        if !waits
            && let Ok(told) = &told
            && told.get("token").is_none()
        {
            self.all().1.remove(&id);
            let mine: BTreeSet<&String> = mine.iter().flat_map(|(_, paths)| paths).collect();
            let refused = json!({
                "state": "refused",
                "you_hold": mine,
                "say": "Release what you hold, then claim all that you need in one call: it waits in line.",
            });
            return Ok(with(told.clone(), refused));
        }
        told
    }

    fn begin(&self, request: All, keys: Vec<Wanted>, paths: BTreeSet<String>) -> u64 {
        let (tell, state) = watch::channel(State::Waiting);
        let (end, ends) = watch::channel(false);
        let (asked, asks) = watch::channel(Instant::now());
        let owner = request.owner_name().to_owned();
        tokio::spawn(live(request, tell, ends, asks));
        let mut all = self.all();
        all.0 += 1;
        let id = all.0;
        all.1.insert(id, Claim { paths, keys, owner, state, end, asked });
        id
    }

    /// Waits until that claim is held or has ended, up to `patience`.
    ///
    /// # Errors
    /// If there is no such claim.
    pub(crate) async fn wait(&self, id: u64, patience: Duration) -> Result<Value, Trouble> {
        let claim = self.all().1.get(&id).cloned().ok_or_else(|| format!("no claim {id}"))?;
        let mut state = claim.state.clone();
        let settled = state.wait_for(|state| !matches!(state, State::Waiting));
        let mut now = match timeout(patience, settled).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => State::Ended("the claim has ended".into()),
            Err(_) => State::Waiting,
        };
        let mut in_line = Value::Null;
        if matches!(now, State::Waiting) {
            in_line = self.placed(&claim).await;
            now = claim.state.borrow().clone();
        }
        claim.asked.send_replace(Instant::now());
        let paths = &claim.paths;
        Ok(match now {
            State::Held(token) => {
                json!({ "claim": id, "state": "held", "paths": paths, "token": token })
            }
            State::Waiting => {
                let say = "Do not write yet. Call wait with this claim, or release it.";
                with(in_line, json!({ "claim": id, "say": say }))
            }
            State::Ended(why) => {
                let in_line = self.in_line(&claim).await;
                self.all().1.remove(&id);
                with(in_line, json!({ "claim": id, "state": "ended", "why": why }))
            }
        })
    }

    /// The place in line of a waiting claim. Its request may still be on its way to the server.
    async fn placed(&self, claim: &Claim) -> Value {
        let end = Instant::now() + ON_ITS_WAY;
        loop {
            let told = self.in_line(claim).await;
            let is_settled = !matches!(*claim.state.borrow(), State::Waiting);
            let is_placed = told.get("place").is_some_and(Value::is_u64);
            if is_settled || is_placed || Instant::now() > end {
                return told;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The place in line of a claim, and who is in front of it.
    async fn in_line(&self, claim: &Claim) -> Value {
        let (at, keys, owner) = (self.at.clone(), claim.keys.clone(), claim.owner.clone());
        let found = tokio::task::spawn_blocking(move || Place::find(&at, &keys, &owner)).await;
        let found = match found.unwrap_or_else(|error| Err(error.to_string())) {
            Ok((_, found)) => found,
            Err(trouble) => {
                return json!({ "state": "waiting", "paths": claim.paths, "trouble": trouble });
            }
        };
        let key = found.key.to_string();
        let path = key.strip_prefix(&self.key("")).unwrap_or(&key);
        json!({
            "state": "waiting",
            "paths": claim.paths,
            "at": if path.is_empty() { "." } else { path },
            "place": found.place,
            "behind": found.in_the_way(),
        })
    }

    /// Releases a claim, or all.
    ///
    /// # Errors
    /// If there is no such claim.
    pub(crate) async fn release(&self, id: Option<u64>) -> Result<Value, Trouble> {
        let ended: Vec<(u64, Claim)> = {
            let mut all = self.all();
            match id {
                None => std::mem::take(&mut all.1).into_iter().collect(),
                Some(id) => {
                    let claim = all.1.remove(&id).ok_or_else(|| format!("no claim {id}"))?;
                    vec![(id, claim)]
                }
            }
        };
        let mut released = Vec::new();
        for (id, claim) in ended {
            let was = claim.state.borrow().clone();
            claim.end.send_replace(true);
            let mut state = claim.state.clone();
            let _ = timeout(PARTING, async { while state.changed().await.is_ok() {} }).await;
            released.push(json!({
                "claim": id,
                "paths": claim.paths,
                "was": match was {
                    State::Waiting => "waiting".to_owned(),
                    State::Held(_) => "held".to_owned(),
                    State::Ended(why) => format!("ended: {why}"),
                },
            }));
        }
        Ok(json!({ "released": released }))
    }

    /// What the agent has.
    pub(crate) fn mine(&self) -> Value {
        let each = |(id, claim): (&u64, &Claim)| {
            let state = match *claim.state.borrow() {
                State::Held(_) => "held",
                State::Waiting => "waiting",
                State::Ended(_) => "ended",
            };
            json!({ "claim": id, "paths": claim.paths, "state": state })
        };
        self.all().1.iter().map(each).collect()
    }

    /// Claims that ended without the agent's request, each reported once; the claim that the agent
    /// asks about is left out.
    pub(crate) fn lost(&self, but: Option<u64>) -> Vec<Value> {
        let mut lost = Vec::new();
        self.all().1.retain(|id, claim| match &*claim.state.borrow() {
            State::Ended(why) if but != Some(*id) => {
                lost.push(json!({ "claim": id, "paths": claim.paths, "why": why }));
                false
            }
            _ => true,
        });
        lost
    }
}

/// The given answer, with these members added.
pub(crate) fn with(mut answer: Value, members: Value) -> Value {
    if let (Some(all), Value::Object(members)) = (answer.as_object_mut(), members) {
        all.extend(members);
    }
    answer
}

/// Acquires, and holds until the claim is released or lost.
async fn live(
    request: All,
    tell: watch::Sender<State>,
    mut ends: watch::Receiver<bool>,
    asks: watch::Receiver<Instant>,
) {
    let acquired = tokio::select! {
        acquired = request.acquire() => acquired,
        _ = ends.wait_for(|ended| *ended) => return, // leaves the line
    };
    let hold = match acquired {
        Ok(hold) => hold,
        Err(Error::NotAcquired) => {
            tell.send_replace(State::Ended("others hold these paths".into()));
            return;
        }
        Err(error) => {
            tell.send_replace(State::Ended(error.to_string()));
            return;
        }
    };
    let granted = Instant::now();
    tell.send_replace(State::Held(hold.token()));
    let why = tokio::select! {
        () = hold.lost() => "it was lost: stop writing to these paths".to_owned(),
        _ = ends.wait_for(|ended| *ended) => String::new(),
        () = unseen(granted, asks) => {
            format!("its turn came, and you did not ask about it for {} s", UNSEEN.as_secs())
        }
    };
    let _ = hold.release().await;
    if !why.is_empty() {
        tell.send_replace(State::Ended(why));
    }
}

/// Ends when the agent has not asked about the granted claim for a while: it does not know that it
/// holds.
async fn unseen(granted: Instant, mut asks: watch::Receiver<Instant>) {
    let is_seen = timeout(UNSEEN, asks.wait_for(|asked| *asked >= granted)).await.is_ok();
    if is_seen {
        std::future::pending::<()>().await;
    }
}
