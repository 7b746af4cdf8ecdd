//! The kernel timer for the next deadline.

use std::fs::File;
use std::io::{self, Read};

use rlock_core::EpochMs;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::ffi::{self, Ctx, Exclusive};

static ALARM: Exclusive<Option<Alarm>> = Exclusive::empty();

/// The kernel's timer, on the clock of the deadlines. The server's own timers count whole
/// milliseconds: with them a grant came 0.8 ms after its deadline, now 0.3 ms.
struct Alarm {
    timer: File,
    set_to: Option<EpochMs>,
}

impl Alarm {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = File::from(timerfd_create(TimerfdClockId::Realtime, flags)?);
        Ok(Self { timer, set_to: None })
    }

    /// Fires at this moment or earlier: an earlier setting stays, and is re-armed when it fires.
    /// Otherwise a hand-over would cost two system calls.
    fn set(&mut self, at: EpochMs) {
        if self.set_to.is_some_and(|set_to| set_to <= at) {
            return;
        }
        // For the kernel 0 means never; a moment in the past fires at once.
        let ms = at.get().max(1).cast_signed();
        let at_time =
            Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000).saturating_mul(1_000_000) };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: at_time };
        // Re-arming a valid timer cannot fail.
        if timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once).is_ok() {
            self.set_to = Some(at);
        }
    }
}

/// Adds the alarm to the server's loop. If Redis 8 refused the load after this point, the alarm is
/// still there from the first load: the server forgets the module, but not the event.
///
/// # Errors
/// The kernel provides no such timer.
pub fn begin() -> Result<(), String> {
    ALARM.with(|place| {
        if place.is_some() {
            return Ok(());
        }
        let alarm = Alarm::new().map_err(|error| format!("cannot create a timerfd: {error}"))?;
        ffi::when_readable(&alarm.timer, ring)?;
        *place = Some(alarm);
        Ok(())
    })
}

/// The alarm fired. Only a server timer has a context that may write.
fn ring() {
    let is_due = ALARM.with(|alarm| {
        let mut times = [0; 8];
        alarm.as_mut().is_some_and(|alarm| {
            let is_due = alarm.timer.read(&mut times).is_ok();
            alarm.set_to = alarm.set_to.filter(|_| !is_due);
            is_due
        })
    });
    if is_due {
        rlock_engine::timers::soon(&Ctx::detached());
    }
}

/// Sets the alarm to this moment, unless it is set to an earlier one.
pub fn set(at: EpochMs) {
    ALARM.with(|alarm| alarm.as_mut().map(|alarm| alarm.set(at)));
}
