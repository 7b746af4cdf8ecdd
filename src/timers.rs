//! The kernel timer for the next deadline.

use std::fs::File;
use std::io;

use rlock_core::EpochMs;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::ffi::{self, Ctx, Exclusive};

static ALARM: Exclusive<Option<Alarm>> = Exclusive::empty();

/// The kernel's timer, on the clock of the deadlines. The server's own timers count whole
/// milliseconds: with them, a grant came 0.8 ms after its deadline; with this timer, it comes after
/// 0.3 ms.
struct Alarm {
    timer: File,
    flags: TimerfdTimerFlags,
    set_to: Option<EpochMs>,
}

impl Alarm {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = File::from(timerfd_create(TimerfdClockId::Realtime, flags)?);
        let absolute = TimerfdTimerFlags::ABSTIME;
        let reports_steps = absolute | TimerfdTimerFlags::CANCEL_ON_SET;
        // Although it is set to never fire, it reports from now on that the clock was set. gVisor
        // cannot do that.
        let flags = match timerfd_settime(&timer, reports_steps, &once_at(0)) {
            Ok(_) => reports_steps,
            Err(_) => absolute,
        };
        Ok(Self { timer, flags, set_to: None })
    }

    /// Fires at this moment or earlier: an earlier setting is kept, and the timer is set again when
    /// it fires. Otherwise, a hand-off would cost two system calls. True if the clock was set;
    /// [`ring`] then does not report it again.
    fn set(&mut self, at: EpochMs) -> bool {
        if self.set_to.is_some_and(|set_to| set_to <= at) {
            return false;
        }
        // A moment in the past fires at once.
        let once = once_at(at.get().max(1).cast_signed());
        self.set_to = Some(at);
        // This error only reports that the clock was set. The timer runs.
        timerfd_settime(&self.timer, self.flags, &once).err() == Some(Errno::CANCELED)
    }
}

/// A single time, in milliseconds since the Unix epoch. For the kernel, 0 means never.
fn once_at(ms: i64) -> Itimerspec {
    let at_time = Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000).saturating_mul(1_000_000) };
    Itimerspec { it_interval: Timespec::default(), it_value: at_time }
}

/// Checks, at load, that the kernel has such a timer.
///
/// # Errors
/// The kernel has none.
pub fn check() -> Result<(), String> {
    Alarm::new().map(drop).map_err(|error| format!("cannot create a timerfd: {error}"))
}

/// Adds the alarm to the server's loop, as soon as there is something to wait for and no earlier:
/// Redis 8 unloads a module whose settings it refuses, but leaves its files in the loop.
fn begin() {
    let added = Alarm::new().map_err(|error| error.to_string()).and_then(|alarm| {
        ffi::when_readable(&alarm.timer, ring)?;
        Ok(alarm)
    });
    match added {
        Ok(alarm) => ALARM.with(|place| *place = Some(alarm)),
        Err(error) => Ctx::detached().warn(&format!("no timer for deadlines: {error}")),
    }
}

/// The alarm fired, or the clock was set. Only a server timer has a context that may write, so one
/// is started.
fn ring() {
    let read = ALARM.with(|alarm| {
        let alarm = alarm.as_mut()?;
        let read = rustix::io::read(&alarm.timer, &mut [0; 8]);
        let is_over = matches!(read, Ok(_) | Err(Errno::CANCELED));
        alarm.set_to = alarm.set_to.filter(|_| !is_over);
        Some(read)
    });
    match read {
        Some(Ok(_)) => rlock_engine::timers::soon(&Ctx::detached()),
        Some(Err(Errno::CANCELED)) => rlock_engine::timers::clock_was_set(&Ctx::detached()),
        _ => {}
    }
}

/// Sets the alarm to this moment, unless it is set to an earlier one.
pub fn set(at: EpochMs) {
    let set = || ALARM.with(|place| place.as_mut().map(|alarm| alarm.set(at)));
    let was_clock_set = set().or_else(|| {
        begin();
        set()
    });
    if was_clock_set == Some(true) {
        rlock_engine::timers::clock_was_set(&Ctx::detached());
    }
}
