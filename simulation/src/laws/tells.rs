//! Laws about requests that wait for a message: each gets exactly one message, which is true, or
//! there is a reason why not.

use rlock_core::{Reply, Token};

use super::{Broken, must};
use crate::notes::Deed;
use crate::seen::{Kind, Seen};
use crate::server::Server;
use crate::tell::{Tell, Why};
use crate::words::Outcome;

/// Law: a message says what was decided.
pub fn told(tell: &Tell, outcome: &Outcome, seen: &mut Seen) -> Result<(), Broken> {
    let is_observer = tell.waiting.observes.is_some();
    let is_so = match (&tell.reply, outcome) {
        (Some(Reply::Granted { token, remaining_ms }), Outcome::Token(said, ms)) => {
            token.get() == said.cast_unsigned() && remaining_ms == ms
        }
        (Some(Reply::NotNow { wait_ms }), Outcome::Nil(ms)) => {
            *ms == wait_ms.map_or(-1, u64::cast_signed)
        }
        (Some(Reply::Renewed), Outcome::Renewed) | (Some(Reply::Refused(_)), Outcome::Error(_)) => {
            true
        }
        (None, Outcome::Holder(..) | Outcome::Nil(-1)) => is_observer,
        // This server is no longer a primary.
        (None, Outcome::Error(line)) => is_observer || line.starts_with("UNBLOCKED "),
        _ => false,
    };
    must(is_so, "a message says what was decided", || format!("{outcome:?} of {tell:?}"))?;
    seen.count(match outcome {
        Outcome::Token(..) => Kind::ToldByMessage,
        Outcome::Renewed => Kind::RenewalToldByMessage,
        Outcome::Holder(..) => Kind::ObserverToldByMessage,
        Outcome::Nil(_) => Kind::NilByMessage,
        Outcome::Error(_) => Kind::ErrorByMessage,
    });
    Ok(())
}

/// Law: a request ends without a message only for a reason.
pub fn ended(tell: &Tell, why: Option<Why>, seen: &mut Seen) -> Result<(), Broken> {
    must(why.is_some(), "exactly one message", || format!("none of {tell:?}"))?;
    why.into_iter().for_each(|why| {
        seen.count(match why {
            Why::Withdrawn => Kind::TellWithdrawn,
            Why::Closed => Kind::TellClosed,
            Why::Unheard => Kind::Untold,
        });
    });
    Ok(())
}

/// Law: the counters agree with what exists.
pub fn counted(server: &Server) -> Result<(), Broken> {
    let manager = &server.state.manager;
    let waits = |tell: &&Tell| manager.due_message(tell.waiting.waiter).is_none();
    let all = server.tells.all.values().filter(waits).count();
    must(manager.tell_count() == all, "requests for messages are counted", || {
        format!("{} are counted of {:?}", manager.tell_count(), server.tells.all)
    })?;
    must(all <= server.bounds.max_tells, "no more wait for messages than may", || {
        format!("{all} wait for messages")
    })
}

/// Law: a wait for a message has a time limit, and a request for a session does not outlive its
/// connection.
pub fn lasts(server: &Server, tell: &Tell) -> Result<(), Broken> {
    let most = server.bounds.max_tell_ms;
    let ends_at = tell.waiting.asked.ends_at;
    // A time between two milliseconds is rounded up.
    let latest = server.now_ms().saturating_add(most + 1);
    let is_bound = ends_at.is_some_and(|at| at <= latest);
    must(is_bound || server.clock_stepped, "a wait for a message has an end", || {
        format!("{tell:?} at {}", server.now_ms())
    })?;
    let is_closed = tell.waiting.asked.session && !server.conns.contains_key(&tell.client);
    must(!is_closed, "a request for a session ends with its connection", || format!("{tell:?}"))
}

/// Law: messages leave after the effects and the events of their step, in the order of the grants.
pub fn in_order(deeds: &[Deed]) -> Result<(), Broken> {
    let mut told: Vec<Token> = Vec::new();
    for (at, deed) in deeds.iter().enumerate() {
        let Deed::Message(token) = deed else { continue };
        let before = &deeds[..at];
        let began = before.iter().rposition(|deed| match deed {
            Deed::Began(.., tokens) => tokens.contains(token),
            _ => false,
        });
        let Some(began) = began else { continue };
        let Deed::Began(db, key, tokens) = &deeds[began] else { continue };
        let is_handed = before.iter().any(|deed| match deed {
            Deed::Effects(tokens) => tokens.contains(token),
            _ => false,
        });
        must(is_handed, "a message comes after the effects", || format!("{token:?}: {deeds:?}"))?;
        let is_it = |deed: &&Deed| **deed == Deed::Event(*db, key.clone());
        let events = before[began..].iter().filter(is_it).count();
        must(events >= tokens.len(), "a message comes after the events", || {
            format!("{token:?}: {deeds:?}")
        })?;
        // A re-entry has the token of the hold that existed before.
        let is_reentry = told.contains(token) || deeds.contains(&Deed::Reply(*token));
        let is_last = is_reentry || told.iter().all(|before| before < token);
        must(is_last, "messages come as they were granted", || format!("{token:?}: {deeds:?}"))?;
        told.push(*token);
    }
    Ok(())
}
