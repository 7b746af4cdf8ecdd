//! Small helpers that every file of the crate may use.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisResult;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::error::{timed_out, unreached};
use crate::machine;

/// How long one request may take, and how long a request that does not wait is retried when connections break.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// Locks a mutex of the crate, even after a panic: each is held briefly, and its contents are
/// consistent at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the result of a call. If something is still being undone, it waits for that, but no
/// longer than [`machine::LATE`].
pub(crate) fn answer<T: Send + 'static>(
    told: oneshot::Sender<T>,
    answer: T,
    left: Option<oneshot::Receiver<()>>,
) {
    match left {
        None => drop(told.send(answer)),
        Some(left) => {
            tokio::spawn(async move {
                let _ = timeout(Duration::from_millis(machine::LATE), left).await;
                drop(told.send(answer));
            });
        }
    }
}

/// Waits until the signal is true; forever if there is no signal.
pub(crate) async fn is_so(signal: Option<&mut watch::Receiver<bool>>) {
    match signal {
        Some(signal) => is_true(signal).await,
        None => std::future::pending().await,
    }
}

/// Waits until the signal is true; forever if its sender is dropped.
pub(crate) async fn is_true(signal: &mut watch::Receiver<bool>) {
    if signal.wait_for(|is_so| *is_so).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Whole milliseconds; at least 1 if the duration is not zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// A random number below 1000, so that many clients do not return at the same moment.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish() % 1000
}

/// Runs work whose result others need as well, so it continues even if this caller gives up.
pub(crate) fn for_all<T: Send + 'static>(
    work: impl Future<Output = RedisResult<T>> + Send + 'static,
) -> impl Future<Output = RedisResult<T>> {
    // Not inside the returned future: the compiler limits how deeply futures are nested.
    let task = tokio::spawn(work);
    async { task.await.unwrap_or_else(|_| Err(unreached(timed_out()))) }
}
