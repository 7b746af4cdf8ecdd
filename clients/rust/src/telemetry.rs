//! Counters of lock use, and the user's listener, which can neither stop nor delay the crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use crate::Locker;
use crate::options::Options;

/// Something that has ended: an acquisition, or a hold.
#[derive(Clone, Debug)]
pub struct Event {
    /// The lock's key, as text; of several locks, all keys, separated by `, `.
    pub key: String,
    /// How long the acquisition took, or how long the hold lasted.
    pub took: Duration,
    /// When it ended.
    pub at: SystemTime,
    /// Whether an acquisition succeeded.
    pub acquired: bool,
    /// Where it began.
    #[cfg(feature = "opentelemetry")]
    pub(crate) context: opentelemetry::Context,
}

/// Receives the events of a program's locks. One thread of the crate calls it, one event at a time.
/// A panic is counted. While the listener is busy, events wait; if 1000 wait, further events are
/// dropped and counted.
pub trait Listener: Send + 'static {
    /// An acquisition has ended, with the lock or without it.
    fn waited(&mut self, event: &Event) {
        let _ = event;
    }

    /// A hold was released.
    fn held(&mut self, event: &Event) {
        let _ = event;
    }

    /// A hold was lost.
    fn lost(&mut self, event: &Event) {
        let _ = event;
    }
}

/// What a [`Locker`] counts: current holds and waits, and how many holds were lost or renewals
/// failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Holds at the moment.
    pub held: u64,
    /// Acquisitions under way.
    pub waiting: u64,
    /// Holds that were lost.
    pub lost: u64,
    /// Requests to renew a hold that were refused or not answered.
    pub failed_renewals: u64,
    /// Events that were dropped, or at which the listener panicked.
    pub unreported: u64,
}

/// How many events wait at most for a busy listener.
const MOST: usize = 1000;

#[derive(Clone, Copy)]
enum Kind {
    Waited,
    Held,
    Lost,
}

/// The telemetry of one [`Locker`].
#[derive(Default)]
pub(crate) struct Telemetry {
    listener: Option<SyncSender<(Kind, Event)>>,
    held: AtomicU64,
    waiting: AtomicU64,
    lost: AtomicU64,
    failed_renewals: AtomicU64,
    unreported: Arc<AtomicU64>,
}

impl Telemetry {
    fn listening(mut listener: impl Listener) -> Telemetry {
        let (events, heard) = sync_channel::<(Kind, Event)>(MOST);
        let telemetry = Telemetry { listener: Some(events), ..Telemetry::default() };
        let unreported = telemetry.unreported.clone();
        // The thread ends when the last sender is dropped. Without a thread, events are dropped.
        let _ = std::thread::Builder::new().name("rlock-listener".to_owned()).spawn(move || {
            for (kind, event) in heard {
                let call = AssertUnwindSafe(|| match kind {
                    Kind::Waited => listener.waited(&event),
                    Kind::Held => listener.held(&event),
                    Kind::Lost => listener.lost(&event),
                });
                if catch_unwind(call).is_err() {
                    unreported.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        telemetry
    }

    fn counts(&self) -> Counts {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            held: now(&self.held),
            waiting: now(&self.waiting),
            lost: now(&self.lost),
            failed_renewals: now(&self.failed_renewals),
            unreported: now(&self.unreported),
        }
    }

    /// The name of the lock in events.
    fn named(&self, key: &[u8], options: &Options) -> String {
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        match &options.parts {
            _ if self.listener.is_none() => String::new(),
            Some(parts) => parts.iter().map(|one| text(&one.key)).collect::<Vec<_>>().join(", "),
            None => text(key),
        }
    }

    fn tell(&self, kind: Kind, event: impl FnOnce() -> Event) {
        let Some(listener) = &self.listener else { return };
        match listener.try_send((kind, event())) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.unreported.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn failed_renewal(&self) {
        self.failed_renewals.fetch_add(1, Ordering::Relaxed);
    }
}

/// An acquisition in progress. Dropping it reports its end.
pub(crate) struct Waiting {
    telemetry: Arc<Telemetry>,
    key: String,
    since: Instant,
    acquired: bool,
    #[cfg(feature = "opentelemetry")]
    context: opentelemetry::Context,
}

impl Waiting {
    pub(crate) fn new(telemetry: &Arc<Telemetry>, key: &[u8], options: &Options) -> Waiting {
        telemetry.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting {
            telemetry: telemetry.clone(),
            key: telemetry.named(key, options),
            since: Instant::now(),
            acquired: false,
            #[cfg(feature = "opentelemetry")]
            context: opentelemetry::Context::current(),
        }
    }

    pub(crate) fn acquired(mut self) {
        self.acquired = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.telemetry.waiting.fetch_sub(1, Ordering::Relaxed);
        self.telemetry.tell(Kind::Waited, || Event {
            key: std::mem::take(&mut self.key),
            took: self.since.elapsed(),
            at: SystemTime::now(),
            acquired: self.acquired,
            #[cfg(feature = "opentelemetry")]
            context: std::mem::take(&mut self.context),
        });
    }
}

/// A hold, from its grant until it is released or lost.
pub(crate) struct Span {
    telemetry: Arc<Telemetry>,
    key: String,
    since: Instant,
}

impl Span {
    pub(crate) fn new(telemetry: &Arc<Telemetry>, key: &[u8], options: &Options) -> Span {
        telemetry.held.fetch_add(1, Ordering::Relaxed);
        let key = telemetry.named(key, options);
        Span { telemetry: telemetry.clone(), key, since: Instant::now() }
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// To be called once.
    pub(crate) fn ended(&self, is_lost: bool) {
        self.telemetry.held.fetch_sub(1, Ordering::Relaxed);
        if is_lost {
            self.telemetry.lost.fetch_add(1, Ordering::Relaxed);
        }
        let kind = if is_lost { Kind::Lost } else { Kind::Held };
        self.telemetry.tell(kind, || Event {
            key: self.key.clone(),
            took: self.since.elapsed(),
            at: SystemTime::now(),
            acquired: true,
            #[cfg(feature = "opentelemetry")]
            context: opentelemetry::Context::new(),
        });
    }
}

impl Locker {
    /// Informs `listener` of waits, holds and losses.
    ///
    /// Call this first: it returns a new `Locker`, and this one must not have clones yet.
    #[must_use]
    pub fn listener(mut self, listener: impl Listener) -> Locker {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.telemetry = Arc::new(Telemetry::listening(listener));
        }
        self
    }

    /// What is held and waited for now, and how much was lost.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.telemetry.counts()
    }
}
