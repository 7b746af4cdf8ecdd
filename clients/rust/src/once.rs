//! One run in each interval, on all machines together. See `clients/ALGORITHM.md`.

use std::time::Duration;

use crate::check::unless_taken;
use crate::clock::now;
use crate::error::{Error, is_passing};
use crate::machine::Ms;
use crate::util::{PATIENCE, millis};
use crate::{Hold, Locker, Loss, Request};

/// What happens to the interval if a run fails, or its process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfItFails {
    /// Nobody else runs in this interval.
    Keep,
    /// Another run may begin: at once, or when the lease of a process that died has ended.
    Again,
}

/// Work that is to run once in each interval. Nothing is sent before [`Once::run`].
#[derive(Clone)]
#[must_use = "nothing is asked before `run`"]
pub struct Once {
    request: Request,
    every: Duration,
    if_it_fails: IfItFails,
}

impl Locker {
    /// Work that is to run once in each interval, on all machines together. By default it does not
    /// wait, and a failed run still counts.
    pub fn once(&self, key: impl AsRef<[u8]>, every: Duration) -> Once {
        let request = self.lock(key).wait(Duration::ZERO);
        Once { request, every, if_it_fails: IfItFails::Keep }
    }
}

impl Once {
    /// Sets what happens to the interval if a run fails, or its process dies.
    pub fn if_it_fails(mut self, choice: IfItFails) -> Once {
        self.if_it_fails = choice;
        self
    }

    /// Sets the longest wait for the next interval.
    pub fn wait(mut self, wait: Duration) -> Once {
        self.request = self.request.wait(wait);
        self
    }

    /// For [`IfItFails::Again`]: how long the lock outlives a process that died; the default is 30
    /// seconds.
    pub fn lease(mut self, lease: Duration) -> Once {
        self.request = self.request.lease(lease);
        self
    }

    /// As [`Request::acks`].
    pub fn acks(mut self, replicas: u32) -> Once {
        self.request = self.request.acks(replicas);
        self
    }

    /// Does the work unless a run began in this interval, on any machine; then it returns `None`. The work gets the
    /// token, and the signal that the lock is lost: with [`IfItFails::Keep`], it is lost if the work takes longer than
    /// the interval. Dropping the future counts as a failure of the work.
    ///
    /// # Errors
    /// The error of the work, or else what [`Request::acquire`] and [`Hold::release`] return.
    pub async fn run<T, E, W>(self, work: impl FnOnce(u64, Loss) -> W) -> Result<Option<T>, E>
    where
        W: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let Some(turn) = self.begin().await? else { return Ok(None) };
        let outcome = work(turn.token(), turn.loss()).await;
        let ended = turn.end(outcome.is_err()).await;
        let value = outcome?; // an error of the work goes first
        ended?;
        Ok(Some(value))
    }

    pub(crate) async fn begin(self) -> Result<Option<Turn>, Error> {
        let is_again = self.if_it_fails == IfItFails::Again;
        let request = match self.if_it_fails {
            // The grant lasts for the interval, whatever happens to this process.
            IfItFails::Keep => self.request.lease(self.every).no_renewal(),
            IfItFails::Again => self.request,
        };
        let Some(hold) = unless_taken(request.acquire().await)? else { return Ok(None) };
        // The server counts from the grant, which was earlier: so no interval is too short.
        let until = now().saturating_add(1).saturating_add(millis(self.every));
        Ok(Some(Turn { loss: hold.loss(), hold: Some(hold), until, is_again }))
    }
}

/// One run.
pub(crate) struct Turn {
    hold: Option<Hold>,
    loss: Loss,
    until: Ms,
    is_again: bool,
}

impl Turn {
    pub(crate) fn token(&self) -> u64 {
        self.hold.as_ref().map_or(0, Hold::token)
    }

    pub(crate) fn loss(&self) -> Loss {
        self.loss.clone()
    }

    pub(crate) async fn end(mut self, has_failed: bool) -> Result<(), Error> {
        let left = Duration::from_millis(self.until.saturating_sub(now()));
        let is_over = left.is_zero() || (has_failed && self.is_again);
        let kept = match &self.hold {
            Some(hold) if !is_over && hold.is_held() => hold.keep_out(left).await,
            _ => Ok(false),
        };
        if kept.is_err() && !self.is_again {
            return Ok(()); // it ends with the interval anyway
        }
        match self.hold.take() {
            Some(hold) => hold.release_behind(kept).await,
            None => Ok(()),
        }
    }
}

impl Drop for Turn {
    /// The work was cut short, or its end was not reported to the server.
    fn drop(&mut self) {
        match self.hold.take() {
            Some(hold) if !self.is_again => hold.leave(),
            hold => drop(hold),
        }
    }
}

impl Hold {
    /// Releases the hold, and keeps every other writer out for this long. For `rlock run
    /// --once-per`.
    ///
    /// # Errors
    /// As [`Request::acquire`] and [`Hold::release`].
    #[doc(hidden)]
    pub async fn release_and_keep_out(self, rest: Duration) -> Result<(), Error> {
        let kept = self.keep_out(rest).await;
        self.release_behind(kept).await
    }

    /// Releases the hold, once it is known whether every other writer is kept out.
    async fn release_behind(self, kept: Result<bool, Error>) -> Result<(), Error> {
        match (kept, self.release().await) {
            (Ok(true), Err(Error::Lost)) => Ok(()), // its lease ended behind the READ
            (kept, released) => kept.and(released),
        }
    }

    /// Keeps every other writer out for this long, also after the release; false if another writer
    /// is in already.
    ///
    /// # Errors
    /// As [`Request::acquire`].
    async fn keep_out(&self, rest: Duration) -> Result<bool, Error> {
        let until = now().saturating_add(millis(rest));
        let left = || Duration::from_millis(until.saturating_sub(now()).max(1));
        let options = self.options();
        let mut longer = None;
        if options.renews && options.has_acks() {
            let mut request = self.locker().lock(self.key()).owner(self.owner()).no_renewal();
            request.options.acks = options.acks;
            let again = request.lease(left()).wait(PATIENCE).acquire().await?;
            if again.token() != self.token() {
                return Err(Error::Lost);
            }
            longer = Some(again);
        }
        // READ in addition to one's own WRITE is granted at once. It outlives the WRITE, and keeps
        // every other WRITE out.
        let mut words = redis::cmd("RLOCK.ACQUIRE");
        words.arg(self.key()).arg(self.owner()).arg("READ");
        words.arg("LEASE").arg(millis(left())).arg("DEPTH").arg(1);
        let asked = self.locker().inner.servers.ask(self.key(), &words, PATIENCE).await;
        if let Some(longer) = longer {
            longer.leave(); // the same level, by another name
        }
        match asked {
            Ok(token) => Ok(token != redis::Value::Nil),
            Err(error) if is_passing(&error) => Err(Error::out_of_patience(error)),
            Err(error) => Err(error.into()),
        }
    }
}
