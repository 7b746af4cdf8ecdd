//! What needs no task of its own, because most of it is over before a task would be worth its cost: requests, which their
//! callers carry out themselves, and holds, which need no renewal yet. A nurse for each runtime looks at both every
//! [`EVERY`], and makes tasks of what is still there.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::Inner;
use crate::held::{Newborn, look_after};
use crate::servers::lock;

/// Soon enough for a lease that is not urgent, and for a caller who does not go on with its request.
const EVERY: Duration = Duration::from_millis(50);

/// A nurse goes when nothing has begun for so many times [`EVERY`].
const IDLE_MAX: u32 = 20;

/// What began on each runtime since its nurse looked last. Where there is no entry, there is no nurse.
pub(crate) type Nurseries = Mutex<HashMap<Id, Nursery>>;

#[derive(Default)]
pub(crate) struct Nursery {
    holds: Vec<Newborn>,
    work: Vec<Arc<Work>>,
}

type Doing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request under way, and how to wake the caller who carries it out.
pub(crate) struct Work(Mutex<(Option<Doing>, Waker)>);

impl Work {
    /// True if there is nothing left to do, or a task does it.
    fn go_on(&self, cx: &mut Context<'_>) -> bool {
        let (doing, caller) = &mut *lock(&self.0);
        if doing.as_mut().is_some_and(|doing| doing.as_mut().poll(cx).is_ready()) {
            *doing = None;
        }
        caller.clone_from(cx.waker());
        doing.is_none()
    }

    fn take(&self) -> Option<Doing> {
        lock(&self.0).0.take()
    }

    /// A task goes on with it. False if its caller is at it right now.
    fn hand_over(&self) -> bool {
        let (doing, caller) = match self.0.try_lock() {
            Ok(mut work) => (work.0.take(), work.1.clone()),
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(_)) => return true,
        };
        if let Some(doing) = doing {
            tokio::spawn(doing);
            caller.wake(); // which is told by the task from now on
        }
        true
    }
}

/// Who waits for a request.
struct Caller {
    work: Arc<Work>,
    runtime: Handle,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let left = self.work.take();
        left.into_iter().for_each(|left| drop(self.runtime.spawn(left)));
    }
}

/// Carries out `work`, which tells its answer. It goes on to its end, also when its caller goes away or does something
/// else. `None` if it ended without an answer.
pub(crate) async fn carry_out<T>(
    inner: &Arc<Inner>,
    work: impl Future<Output = ()> + Send + 'static,
    mut told: oneshot::Receiver<T>,
) -> Option<T> {
    let work = Arc::new(Work(Mutex::new((Some(Box::pin(work)), Waker::noop().clone()))));
    let runtime = Handle::current();
    begin(inner, &runtime, |nursery| nursery.work.push(work.clone()));
    let caller = Caller { work, runtime };
    let mut is_first = true;
    poll_fn(|cx| {
        let is_over = caller.work.go_on(cx);
        if std::mem::take(&mut is_first) && !is_over {
            // Most requests are over when their first reply is there. Until then nobody else tells, and to be woken by
            // what is told here would cost as much as the request.
            return told.try_recv().map_or(Poll::Pending, |answer| Poll::Ready(Some(answer)));
        }
        Pin::new(&mut told).poll(cx).map(Result::ok)
    })
    .await
}

/// Renews it soon, unless it is released before.
pub(crate) fn nurse(inner: &Arc<Inner>, newborn: Newborn) {
    if newborn.1.is_urgent() {
        return look_after(inner, newborn);
    }
    begin(inner, &Handle::current(), |nursery| nursery.holds.push(newborn));
}

fn begin(inner: &Arc<Inner>, runtime: &Handle, add: impl FnOnce(&mut Nursery)) {
    let mut nurseries = lock(&inner.nurseries);
    let nursery = nurseries.entry(runtime.id()).or_insert_with(|| {
        let (inner, id) = (Arc::downgrade(inner), runtime.id());
        runtime.spawn(look(Nurse { inner, id }));
        Nursery::default()
    });
    add(nursery);
}

struct Nurse {
    inner: Weak<Inner>,
    id: Id,
}

impl Drop for Nurse {
    /// With its runtime: whatever began there has ended as well.
    fn drop(&mut self) {
        let gone = self.inner.upgrade().and_then(|inner| lock(&inner.nurseries).remove(&self.id));
        drop(gone);
    }
}

async fn look(nurse: Nurse) {
    let mut idle = 0;
    loop {
        sleep(EVERY).await;
        let Some(inner) = nurse.inner.upgrade() else { return };
        let Nursery { holds, mut work } = {
            let mut nurseries = lock(&inner.nurseries);
            let Some(nursery) = nurseries.get_mut(&nurse.id) else { return };
            let begun = std::mem::take(nursery);
            idle = if begun.holds.is_empty() && begun.work.is_empty() { idle + 1 } else { 0 };
            if idle == IDLE_MAX {
                nurseries.remove(&nurse.id);
                return;
            }
            begun
        };
        holds.into_iter().for_each(|newborn| look_after(&inner, newborn));
        work.retain(|work| !work.hand_over());
        if let Some(nursery) = lock(&inner.nurseries).get_mut(&nurse.id) {
            nursery.work.append(&mut work);
        }
    }
}
