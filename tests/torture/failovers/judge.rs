//! Checks that the server that took over has every confirmed claim, and grants to nobody else too
//! early, by its own clock.

use std::collections::BTreeSet;

use redis::Value;

use super::claims::{Claim, Sort, loss, loss_of_string};
use super::skew::shown_ms;
use crate::clock::Stop;
use rlock_testkit::{LockView, Server, Waiter, text};

const REPLY_MS_MAX: u64 = 10_000;
/// How many locks a pipeline has.
const BATCH: usize = 64;
/// A stranger waits for the end of claims that end within this time.
const SOON_MS: i64 = 600;
/// How many such claims are tried.
const SOON_MAX: usize = 40;
const KNOCK_MS: u64 = 2;

/// A violated claim.
pub struct Loss {
    /// Its index in the list.
    pub claim: usize,
    pub why: String,
}

/// What the server lacks of these claims, and whether it grants their locks to a stranger.
pub fn losses(server: &Server, claims: &[Claim]) -> Vec<Loss> {
    let mut link = Waiter::may_connect(&server.socket()).unwrap();
    let mut losses = losses_of_strings(&mut link, claims);
    let is_string = |place: usize| claims[place].sort == Sort::SetNx;
    for (number, batch) in claims.chunks(BATCH).enumerate() {
        let lines = batch.iter().map(|claim| format!("RLOCK.INFO {}", claim.key));
        let replies = ask_all(&mut link, lines.collect());
        let seen_ms = shown_ms(&mut link);
        for (place, (claim, reply)) in batch.iter().zip(replies).enumerate() {
            let place = number * BATCH + place;
            if is_string(place) {
                continue;
            }
            let why = loss(claim, &LockView::read(&reply.unwrap()), seen_ms);
            losses.extend(why.map(|why| Loss { claim: place, why }));
        }
    }
    let lost: BTreeSet<usize> = losses.iter().map(|loss| loss.claim).collect();
    let places = 0..claims.len();
    let kept: Vec<usize> =
        places.filter(|place| !lost.contains(place) && !is_string(*place)).collect();
    let mut refused = Vec::new();
    for batch in kept.chunks(BATCH) {
        refused.extend(knock(&mut link, claims, batch, &mut losses));
    }
    // For some, it waits until the lock is free.
    let soon_ms = shown_ms(&mut link) + SOON_MS;
    refused.retain(|place| claims[*place].until_ms < soon_ms);
    refused.truncate(SOON_MAX);
    let last_ms = refused.iter().map(|place| claims[*place].until_ms).max();
    while !refused.is_empty() && Some(shown_ms(&mut link)) <= last_ms {
        refused = knock(&mut link, claims, &refused, &mut losses);
        Stop::default().within(KNOCK_MS);
    }
    losses
}

/// Like `losses`, for claims of strings.
fn losses_of_strings(link: &mut Waiter, claims: &[Claim]) -> Vec<Loss> {
    let places = (0..claims.len()).filter(|place| claims[*place].sort == Sort::SetNx);
    let places: Vec<usize> = places.collect();
    let mut losses = Vec::new();
    for batch in places.chunks(BATCH) {
        let lines = batch.iter().flat_map(|place| {
            let key = &claims[*place].key;
            [format!("GET {key}"), format!("PTTL {key}")]
        });
        let replies = ask_all(link, lines.collect());
        let seen_ms = shown_ms(link);
        for (&claim, replies) in batch.iter().zip(replies.chunks(2)) {
            let [Ok(owner), Ok(Value::Int(ttl_ms))] = replies else { panic!("{replies:?}") };
            let owner = if *owner == Value::Nil { String::new() } else { text(owner) };
            let why = loss_of_string(&claims[claim], &owner, *ttl_ms, seen_ms);
            losses.extend(why.map(|why| Loss { claim, why }));
        }
    }
    losses
}

/// A stranger asks for the locks of these claims. Returns those where it was refused.
fn knock(
    link: &mut Waiter,
    claims: &[Claim],
    places: &[usize],
    losses: &mut Vec<Loss>,
) -> Vec<usize> {
    let line = |place: &usize| format!("RLOCK.ACQUIRE {} stranger LEASE 1", claims[*place].key);
    let replies = ask_all(link, places.iter().map(line).collect());
    let told_ms = shown_ms(link);
    let mut refused = Vec::new();
    for (&claim, reply) in places.iter().zip(replies) {
        let early_ms = claims[claim].until_ms - told_ms;
        match reply {
            Ok(Value::Nil) => refused.push(claim),
            Ok(Value::Int(_)) if early_ms <= 0 => {}
            other => {
                let why = format!("a stranger is told {other:?}, {early_ms} ms too early");
                losses.push(Loss { claim, why });
            }
        }
    }
    refused
}

fn ask_all(link: &mut Waiter, lines: Vec<String>) -> Vec<Result<Value, String>> {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    link.say_all(&lines);
    let reply = |_| link.may_reply(REPLY_MS_MAX).unwrap().unwrap();
    lines.iter().map(reply).collect()
}
