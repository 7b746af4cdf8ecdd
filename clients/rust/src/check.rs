//! Checks whether locks can be acquired at all, for the start of a program.

use std::time::Duration;

use crate::util::PATIENCE;
use crate::{Error, Locker};

/// Long enough for a message, short enough for the start of a program.
const MOMENT: Duration = Duration::from_secs(1);

impl Locker {
    /// Acquires the lock of `key`, waits a moment for it as another owner, and releases it. A
    /// program that calls it at its start finds out there whether the server, the password, TLS,
    /// the module or a permission would keep it from its locks.
    ///
    /// # Errors
    /// The cause, in one sentence.
    pub async fn check(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        let request = self.lock(key);
        let first = unless_taken(request.clone().try_acquire().await)?;
        let second = match request.clone().wait(MOMENT).acquire().await {
            // A program may need more than a moment to start.
            Err(Error::Unavailable(_)) => request.wait(PATIENCE).acquire().await,
            other => other,
        };
        let second = unless_taken(second);
        for hold in [first, second?].into_iter().flatten() {
            hold.release().await?;
        }
        Ok(())
    }
}

pub(crate) fn unless_taken<T>(acquired: Result<T, Error>) -> Result<Option<T>, Error> {
    match acquired {
        Ok(hold) => Ok(Some(hold)),
        Err(Error::NotAcquired) => Ok(None),
        Err(error) => Err(error),
    }
}
