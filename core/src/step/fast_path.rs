//! A fast path for most requests: to acquire a free lock, and to release its only hold, while the
//! lock has no waiters and no sessions.
//!
//! These requests need none of the preparations of [`crate::Step::apply`], and have the same
//! results: on both paths, [`Lock::begin`] begins a hold and [`Lock::replay`] makes every change.
//! `core/tests/laws.rs` compares the two.

use std::borrow::Cow;

use smallvec::smallvec;

use crate::step::input::{Acquire, Effects, Input, Levels, Release, Reply};
use crate::volatile::slow::Slow;
use crate::{Change, End, Event, Lock, Now, Token, Tokens};

/// What a plain request did.
#[must_use = "a change that is not carried out is a lost grant"]
#[derive(Clone, Debug)]
pub struct FastStep<'a> {
    /// For replicas and the append-only file.
    pub change: Change<'a>,
    /// For subscribers.
    pub event: Option<Event>,
    /// For the caller.
    pub reply: Reply,
    /// As [`Effects::is_request_enough`].
    pub is_request_enough: bool,
}

impl<'a> From<FastStep<'a>> for Effects<'a> {
    fn from(step: FastStep<'a>) -> Self {
        let FastStep { change, event, reply, is_request_enough } = step;
        let (changes, events) = (smallvec![change], event.into_iter().collect());
        Self { reply, changes, events, is_request_enough, ..Self::default() }
    }
}

/// Whether a request with this `DEPTH` may begin a hold.
pub(crate) fn is_first_level(depth: Option<u16>) -> bool {
    depth.is_none_or(|depth| depth == 1)
}

impl Lock {
    /// Does what a plain request asks for. `None` if the request is not plain; nothing has changed
    /// then. The lock must have no waiters and no sessions.
    #[inline]
    pub fn try_fast<'a>(
        &mut self,
        input: &Input<'a>,
        now: Now,
        tokens: &mut Tokens,
        slow: Slow,
    ) -> Option<FastStep<'a>> {
        match input {
            Input::Acquire(ask) if self.is_plain(ask) => {
                let token = tokens.issue(now)?;
                Some(self.begin(Cow::Borrowed(ask.owner), ask, now, token))
            }
            Input::Release(ask) => self.release_fast(ask, now, slow),
            Input::Enter { ask, token: Some(token), .. } if self.is_plain(ask) => {
                Some(self.begin(Cow::Borrowed(ask.owner), ask, now, *token))
            }
            Input::ReleaseAll(owner, token) => {
                let ask = Release { owner, mode: None, token: *token, levels: Levels::All };
                let step = self.release_fast(&ask, now, slow)?;
                Some(FastStep { reply: Reply::Count(1), is_request_enough: false, ..step })
            }
            _ => None,
        }
    }

    /// Whether the lock is free, and nothing is to be remembered of the grant.
    #[inline]
    fn is_plain(&self, ask: &Acquire<'_>) -> bool {
        // Every field has its name here, so that the compiler asks about a new one.
        let &Acquire {
            owner: _,
            mode: _,
            lease: _,
            upgrade: _,
            limit: _,
            depth,
            session,
            patience: _,
            max_queue: _,
            acks,
        } = ask;
        self.is_free() && is_first_level(depth) && session.is_none() && acks == 0
    }

    #[inline]
    fn release_fast<'a>(
        &mut self,
        ask: &Release<'_>,
        now: Now,
        slow: Slow,
    ) -> Option<FastStep<'a>> {
        let (hold, left) = self.release_target(ask)?;
        let is_only = left == 0 && self.hold_count() == 1;
        let is_slow = slow.hold_ms.is_some_and(|least| hold.token.age_ms(now) >= least);
        if !is_only || is_slow || hold.deadline.is_over_at(now) {
            return None;
        }
        let change = Change::Ended { token: hold.token, by: End::Released };
        let event = self.replay(&change);
        Some(FastStep { change, event, reply: Reply::Count(0), is_request_enough: true })
    }

    /// Begins a new hold with this token, which exceeds every token before it.
    #[inline]
    pub(crate) fn begin<'a>(
        &mut self,
        owner: Cow<'a, [u8]>,
        ask: &Acquire<'_>,
        now: Now,
        token: Token,
    ) -> FastStep<'a> {
        let deadline = now.after(ask.lease);
        let change = Change::Granted { owner, mode: ask.mode, token, deadline };
        let event = self.replay(&change);
        let reply = Reply::Granted { token, remaining_ms: deadline.left_at(now) };
        FastStep { change, event, reply, is_request_enough: false }
    }
}
