//! What the clients do all the time: one role for each kind of reply that can be the last one.

use std::io::Error;

use super::asker::{Ask, Asker, release};
use super::claims::{Kind, Sort};
use super::variants::Control;
use crate::clock::{ms, now_ns};
use crate::history::Mode;
use redis::Value;
use rlock_testkit::{Waiter, now_ms, text};

pub type Role = fn(&mut Asker) -> Result<(), Error>;

/// How many commands are sent in one piece.
const BATCH: usize = 18;
/// How many locks are handed over at the same time.
const PAIRS: usize = 6;

/// The clients of a round.
pub fn all(control: Control) -> Vec<(Sort, Role)> {
    use Sort::{Acked, OneAck, Plain, SetNx, Waited};
    let mut all: Vec<(Sort, Role)> = vec![
        (Acked, fresh),
        (Acked, lives),
        (Acked, lives),
        (Acked, hand_over),
        (Acked, told),
        (Acked, sessions),
        (Acked, ring),
        (Acked, ring),
        (Acked, ring),
        (Acked, closes),
        (Acked, closes_as_heir),
        (Acked, closing_ring),
        (Acked, closing_ring),
        (Acked, groups),
        (Acked, groups_handed_over),
        (Acked, groups_told),
    ];
    let others: &[(Sort, Role)] = match control {
        Control::Nobody => &[],
        Control::OneAck => &[(OneAck, lives)],
        Control::Unconfirmed => &[
            (SetNx, strings),
            (Plain, fresh),
            (Plain, lives),
            (Plain, hand_over),
            (Plain, told),
            (Plain, sessions),
            (Plain, closes),
            (Plain, closes_as_heir),
            (Plain, closing_ring),
            (Plain, groups),
            (Plain, groups_handed_over),
            (Plain, groups_told),
            (Waited, fresh),
            (Waited, lives),
            (Waited, hand_over),
        ],
    };
    all.extend(others);
    all
}

/// New locks, of one writer or two readers.
fn fresh(me: &mut Asker) -> Result<(), Error> {
    let mut links = me.links()?;
    while !me.is_over() {
        let mut asks = Vec::new();
        while asks.len() < BATCH {
            let (key, mode, lease_ms) = (me.new_key(), me.any_mode(), me.any_lease_ms());
            let owners = if mode == Mode::Read { 2 } else { 1 };
            for owner in 0..owners {
                let owner = format!("{}.{owner}", me.name);
                let words = *me.rng.choice(&["", "DEPTH 1", "WITHTTL"]).unwrap();
                asks.push(Ask { words, ..Ask::new(&key, &owner, mode, lease_ms) });
            }
        }
        me.ask_all(&mut links, &asks)?;
        me.rest(4);
    }
    Ok(())
}

/// What many programs use as a lock: a string that is set if it does not exist. Some are deleted
/// again.
fn strings(me: &mut Asker) -> Result<(), Error> {
    let mut link = me.link()?;
    while !me.is_over() {
        let mut asks = Vec::new();
        while asks.len() < BATCH {
            let (key, lease_ms) = (me.new_key(), me.any_lease_ms());
            asks.push(Ask::new(&key, &me.name, Mode::Write, lease_ms));
        }
        let are_set = me.set_all(&mut link, &asks)?;
        for (ask, is_set) in asks.iter().zip(are_set) {
            if is_set && me.rng.u8(..4) == 0 {
                me.delete(&mut link, ask)?;
            }
        }
        me.rest(4);
    }
    Ok(())
}

/// Some locks, each of them from the first grant to the last renewal, with a longer lease each
/// time.
fn lives(me: &mut Asker) -> Result<(), Error> {
    let mut links = me.links()?;
    while !me.is_over() {
        let mut asks = Vec::new();
        for _ in 0..BATCH {
            let (key, mode) = (me.new_key(), me.any_mode());
            // Some rely on their first grant only when they ask again, which changes nothing.
            let is_loose = me.rng.u8(..3) == 0;
            asks.push(Ask { is_loose, ..Ask::new(&key, &me.name, mode, 20_000) });
        }
        for step in 0..6 {
            let told = me.ask_all(&mut links, &asks)?;
            let mut is_told = told.into_iter();
            asks.retain(|_| is_told.next().unwrap());
            asks.iter_mut().for_each(|ask| advance(ask, step));
            me.rest(3);
        }
    }
    Ok(())
}

/// Prepares the next request about a hold.
fn advance(ask: &mut Ask, step: i64) {
    let was_loose = std::mem::take(&mut ask.is_loose);
    (ask.kind, ask.words, ask.token) = (Kind::ReEntry, "DEPTH 1", None);
    if was_loose {
        // It changes nothing, not even the deadline.
        ask.lease_ms = 10_000;
        return;
    }
    ask.lease_ms += 5000;
    match step {
        0 => ask.kind = Kind::Renewal,
        1 => (ask.words, ask.depth) = ("DEPTH 2", 2),
        2 => ask.kind = Kind::Renewal,
        3 if ask.mode == Mode::Read => {
            (ask.kind, ask.mode, ask.words) = (Kind::Upgrade, Mode::Write, "UPGRADE");
            ask.depth = 1;
        }
        3 => ask.words = if ask.depth == 2 { "DEPTH 2" } else { "DEPTH 1" },
        _ => {
            // The same depth.
            ask.words = if ask.depth == 2 { "DEPTH 2" } else { "DEPTH 1" };
            ask.lease_ms = 1000;
        }
    }
}

/// One client holds some locks, others are blocked behind it, and it releases all of them.
fn hand_over(me: &mut Asker) -> Result<(), Error> {
    let mut holder = me.link()?;
    let mut heirs = Vec::new();
    for _ in 0..PAIRS {
        heirs.push(me.link()?);
    }
    while !me.is_over() {
        let mut asks = Vec::new();
        for _ in 0..PAIRS {
            let (key, mode, lease_ms) = (me.new_key(), me.any_mode(), me.any_lease_ms());
            let (kind, words) = (Kind::HandOver, "BLOCK 5000 DEPTH 1");
            asks.push(Ask { kind, words, ..Ask::new(&key, &me.name, mode, lease_ms) });
        }
        let holds = asks.iter().map(|ask| format!("RLOCK.ACQUIRE {} before", ask.key));
        let is_held = tell(me, &mut holder, &holds.collect::<Vec<_>>())?;
        let asked_ms = now_ms();
        for (heir, ask) in heirs.iter_mut().zip(&asks) {
            me.say(heir, std::slice::from_ref(ask))?;
        }
        // When this is answered, everything that was sent before has been read.
        tell(me, &mut holder, &["PING".to_owned()])?;
        let sent_ms = if is_held { now_ms() } else { asked_ms };
        let releases = asks.iter().map(|ask| release(&ask.key, "before", Mode::Write));
        tell(me, &mut holder, &releases.collect::<Vec<_>>())?;
        for (heir, ask) in heirs.iter_mut().zip(&asks) {
            me.hear(heir, ask, sent_ms)?;
        }
        me.rest(4);
    }
    Ok(())
}

/// Like `hand_over`, with TELL: one connection asks for all of them, and is not blocked.
fn told(me: &mut Asker) -> Result<(), Error> {
    by_message(me, |me| {
        let (key, kind, words) = (me.new_key(), Kind::Told, "BLOCK 5000 DEPTH 1");
        Ask { kind, words, ..Ask::new(&key, &me.name, Mode::Write, 30_000) }
    })
}

fn by_message(me: &mut Asker, new: fn(&mut Asker) -> Ask) -> Result<(), Error> {
    let (mut holder, mut link, mut ears) = (me.link()?, me.link()?, me.link()?);
    let channel = format!("{}:told:{}", me.site.prefix, me.name); // in the slot of the keys
    me.say_lines(&mut ears, &[format!("SSUBSCRIBE {channel}")])?;
    me.next(&mut ears)?.ok();
    while !me.is_over() {
        let mut asks = Vec::new();
        for _ in 0..PAIRS {
            asks.push(Ask { channel: Some(channel.clone()), ..new(me) });
        }
        let holds = asks.iter().map(|ask| format!("RLOCK.ACQUIRE {} before", ask.key));
        let is_held = tell(me, &mut holder, &holds.collect::<Vec<_>>())?;
        let asked_ms = now_ms();
        me.say(&mut link, &asks)?;
        let mut waiting = Vec::new();
        for ask in &asks {
            match me.next(&mut link)? {
                Ok(Value::SimpleString(word)) if word == "WAITING" => waiting.push(ask),
                reply => drop(me.note(ask, &reply, true, asked_ms)),
            }
        }
        let sent_ms = if is_held { now_ms() } else { asked_ms };
        let releases = asks.iter().map(|ask| release(&ask.key, "before", Mode::Write));
        tell(me, &mut holder, &releases.collect::<Vec<_>>())?;
        while !waiting.is_empty() {
            let Ok(message) = me.next(&mut ears)? else { continue };
            let (id, reply) = outcome_of(&message);
            if let Some(place) = waiting.iter().position(|ask| ask.key == id) {
                me.note(waiting.swap_remove(place), &reply, true, sent_ms);
            }
        }
        me.rest(4);
    }
    Ok(())
}

/// The request that a message is for, and the reply in it.
fn outcome_of(message: &Value) -> (String, Result<Value, String>) {
    let said = match message {
        Value::Array(parts) if matches!(parts.last(), Some(Value::BulkString(_))) => {
            text(&parts[parts.len() - 1])
        }
        _ => String::new(), // the subscription itself has ended
    };
    let (id, outcome) = said.split_once(' ').unwrap_or((&said, ""));
    let words: Vec<&str> = outcome.split(' ').collect();
    let number = |word: &str| Value::Int(word.parse().unwrap());
    let reply = match words.as_slice() {
        ["token", token, ms] => Ok(Value::Array(vec![number(token), number(ms)])),
        ["error", ..] => Err(outcome.trim_start_matches("error ").to_owned()),
        _ => Ok(Value::Nil),
    };
    (id.to_owned(), reply)
}

/// Several new locks in one step.
fn several(me: &mut Asker, kind: Kind, words: &'static str) -> Ask {
    let (key, mode, lease_ms) = (me.new_key(), me.any_mode(), me.any_lease_ms());
    let more = vec![me.new_key(), me.new_key()];
    Ask { kind, more, words, ..Ask::new(&key, &me.name, mode, lease_ms) }
}

/// Several locks in one step; some of them are renewed together.
fn groups(me: &mut Asker) -> Result<(), Error> {
    let mut links = me.links()?;
    while !me.is_over() {
        let mut asks: Vec<Ask> = (0..BATCH).map(|_| several(me, Kind::Group, "WITHTTL")).collect();
        for step in 0..3 {
            let told = me.ask_all(&mut links, &asks)?;
            let mut is_told = told.into_iter();
            asks.retain(|_| is_told.next().unwrap());
            asks.truncate(if step == 0 { BATCH / 2 } else { BATCH });
            for ask in &mut asks {
                (ask.kind, ask.lease_ms) = (Kind::GroupRenewal, ask.lease_ms + 5000);
                ask.token = me.claim_of(ask).map(|claim| claim.token);
            }
            me.rest(3);
        }
    }
    Ok(())
}

/// One client holds a lock of each group, which is blocked behind it, and releases all of them.
fn groups_handed_over(me: &mut Asker) -> Result<(), Error> {
    let mut holder = me.link()?;
    let mut heirs = Vec::new();
    for _ in 0..PAIRS {
        heirs.push(me.link()?);
    }
    while !me.is_over() {
        let mut asks = Vec::new();
        for _ in 0..PAIRS {
            asks.push(several(me, Kind::GroupHandOver, "BLOCK 5000"));
        }
        let holds = asks.iter().map(|ask| format!("RLOCK.ACQUIRE {} before", ask.key));
        let is_held = tell(me, &mut holder, &holds.collect::<Vec<_>>())?;
        let asked_ms = now_ms();
        for (heir, ask) in heirs.iter_mut().zip(&asks) {
            me.say(heir, std::slice::from_ref(ask))?;
        }
        tell(me, &mut holder, &["PING".to_owned()])?;
        let sent_ms = if is_held { now_ms() } else { asked_ms };
        let releases = asks.iter().map(|ask| release(&ask.key, "before", Mode::Write));
        tell(me, &mut holder, &releases.collect::<Vec<_>>())?;
        for (heir, ask) in heirs.iter_mut().zip(&asks) {
            me.hear(heir, ask, sent_ms)?;
        }
        me.rest(4);
    }
    Ok(())
}

/// Like `groups_handed_over`, with TELL.
fn groups_told(me: &mut Asker) -> Result<(), Error> {
    by_message(me, |me| {
        let ask = several(me, Kind::GroupTold, "BLOCK 5000");
        Ask { mode: Mode::Write, lease_ms: 30_000, ..ask }
    })
}

/// Holds that end with the connection. (With a shorter lease, the server would close the connection
/// where acknowledgments take a second.)
fn sessions(me: &mut Asker) -> Result<(), Error> {
    let mut links = me.links()?;
    for link in &mut links {
        tell(me, link, &["CLIENT SETNAME session".to_owned()])?;
    }
    while !me.is_over() {
        let mut asks = Vec::new();
        for _ in 0..BATCH {
            let key = me.new_key();
            let lease_ms = me.rng.i64(3000..10_000);
            let (kind, words) = (Kind::Session, "SESSION");
            asks.push(Ask { kind, words, ..Ask::new(&key, &me.name, Mode::Write, lease_ms) });
        }
        me.ask_all(&mut links, &asks)?;
        me.rest(12);
    }
    Ok(())
}

/// All clients of this role want one lock, and keep it for a moment: of those that get a grant, one
/// holds the lock.
fn ring(me: &mut Asker) -> Result<(), Error> {
    let mut link = me.link()?;
    let key = format!("{}:ring", me.site.prefix);
    let words = "BLOCK 5000 DEPTH 1";
    let ask = Ask { kind: Kind::HandOver, words, ..Ask::new(&key, &me.name, Mode::Write, 20_000) };
    while !me.is_over() {
        // It may have waited for a long time: it knows only that its lease has not expired.
        let is_told = me.ask_all(std::slice::from_mut(&mut link), std::slice::from_ref(&ask))?[0];
        let from_ms = ms(now_ns());
        if is_told {
            me.rest(1);
            me.stayed(&ask, from_ms);
            me.give_back(&mut link, &ask)?;
        } else {
            me.rest(2);
        }
    }
    Ok(())
}

/// New locks, each asked for on a connection that is closed as soon as the token is there: as a
/// program of one line does it.
fn closes(me: &mut Asker) -> Result<(), Error> {
    while !me.is_over() {
        for _ in 0..BATCH {
            let (key, lease_ms) = (me.new_key(), me.any_lease_ms());
            let ask = Ask { kind: Kind::Closed, ..Ask::new(&key, &me.name, Mode::Write, lease_ms) };
            let mut link = me.link()?;
            me.ask_all(std::slice::from_mut(&mut link), std::slice::from_ref(&ask))?;
        }
        me.rest(4);
    }
    Ok(())
}

/// These lines make the release run late in an iteration of the server's loop, right before the
/// replies are written.
fn late_release(key: &str, owner: &str) -> [String; 2] {
    ["WAIT 9 1".to_owned(), release(key, owner, Mode::Write)]
}

/// Locks are handed over to callers that close as soon as they have read the token.
fn closes_as_heir(me: &mut Asker) -> Result<(), Error> {
    let mut holder = me.link()?;
    while !me.is_over() {
        let (key, lease_ms) = (me.new_key(), me.any_lease_ms());
        let (kind, words) = (Kind::Closed, "BLOCK 5000 DEPTH 1");
        let ask = Ask { kind, words, ..Ask::new(&key, &me.name, Mode::Write, lease_ms) };
        let is_held = tell(me, &mut holder, &[format!("RLOCK.ACQUIRE {key} before")])?;
        let mut heir = me.link()?;
        let asked_ms = now_ms();
        me.say(&mut heir, std::slice::from_ref(&ask))?;
        tell(me, &mut holder, &["PING".to_owned()])?;
        let sent_ms = if is_held { now_ms() } else { asked_ms };
        let lines = late_release(&key, "before");
        me.say_lines(&mut holder, &lines)?;
        me.hear(&mut heir, &ask, sent_ms)?;
        drop(heir);
        lines.iter().try_for_each(|_| me.next(&mut holder).map(drop))?;
    }
    Ok(())
}

/// As [`ring`], but each client closes its connection as soon as it has read the token, and
/// releases the lock on another one.
fn closing_ring(me: &mut Asker) -> Result<(), Error> {
    let key = format!("{}:door", me.site.prefix);
    let (kind, words) = (Kind::Closed, "BLOCK 5000 DEPTH 1");
    let ask = Ask { kind, words, ..Ask::new(&key, &me.name, Mode::Write, 20_000) };
    while !me.is_over() {
        let mut link = me.link()?;
        let is_told = me.ask_all(std::slice::from_mut(&mut link), std::slice::from_ref(&ask))?[0];
        drop(link);
        let from_ms = ms(now_ns());
        if is_told {
            me.rest(1);
            let mut other = me.link()?;
            me.stayed(&ask, from_ms);
            me.give_back_late(&mut other, &ask, &late_release(&key, &me.name))?;
        } else {
            me.rest(2);
        }
    }
    Ok(())
}

/// Sends these commands, and returns whether none of the replies is an error; otherwise, they do
/// not matter. Where replicas must acknowledge every grant, a lock that was to be held may be free:
/// the next client then gets it as soon as it asks.
fn tell(me: &mut Asker, link: &mut Waiter, lines: &[String]) -> Result<bool, Error> {
    me.say_lines(link, lines)?;
    let mut is_well = true;
    for _ in lines {
        is_well &= me.next(link)?.is_ok();
    }
    Ok(is_well)
}
