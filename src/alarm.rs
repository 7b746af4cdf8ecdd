//! One timer for the whole module, at the next moment that anyone waits for. Nobody waits, no
//! timer.

use std::fs::File;
use std::io::{self, Read};

use rlock_core::EpochMs;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::ffi::{self, Ctx};
use crate::memories::Mark;
use crate::{executor, publish, state};

/// While nothing may be written (a pause, a cluster that is down), marked locks wait so long for
/// the next try, in milliseconds.
const RETRY_MS: u64 = 50;

/// The kernel's timer, on the clock that deadlines are of. The server's own timers sleep in whole
/// milliseconds from now: a grant came 0.8 ms after its deadline, and comes 0.3 ms after it now.
#[derive(Debug)]
pub struct Alarm {
    timer: File,
    set_to: Option<EpochMs>,
}

impl Alarm {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = File::from(timerfd_create(TimerfdClockId::Realtime, flags)?);
        let alarm = Self { timer, set_to: None };
        alarm.settle()?;
        Ok(alarm)
    }

    /// The kernel takes 0 for never; a moment that is past already comes at once.
    fn settle(&self) -> io::Result<()> {
        let ms = self.set_to.map_or(0, EpochMs::get).cast_signed();
        let at = Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000).saturating_mul(1_000_000) };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

/// Has the server's loop listen to the alarm. It does already where Redis 8 refused what the module
/// was loaded with, once the module was there: the server forgets it then, but not the event.
///
/// # Errors
/// The kernel has no such timer for us.
pub fn begin() -> Result<(), String> {
    if state::with(|state| state.alarm.is_some()) {
        return Ok(());
    }
    let alarm = Alarm::new().map_err(|error| format!("no timerfd: {error}"))?;
    ffi::when_readable(&alarm.timer, ring)?;
    state::with(|state| state.alarm = Some(alarm));
    Ok(())
}

/// Sets the alarm to the next moment, if it is not set to it already.
pub fn set() {
    state::with(|state| {
        let next = state.memories.next_alarm();
        if let Some(alarm) = &mut state.alarm
            && alarm.set_to != next
        {
            alarm.set_to = next;
            // It could be set once: of a timer and a moment that there are, nothing else can fail.
            let _ = alarm.settle();
        }
    });
}

/// It is time. Only a server's timer has a context that may write.
fn ring() {
    let is_due = state::with(|state| {
        let mut times = [0; 8];
        state.alarm.as_mut().is_some_and(|alarm| alarm.timer.read(&mut times).is_ok())
    });
    if is_due {
        ffi::after(0, fire);
    }
}

/// Looks once at every lock whose alarm came due: a clock that steps back may not keep the server
/// here.
fn fire(ctx: &Ctx) {
    let now = state::now();
    let due = state::with(|state| {
        if let Some(alarm) = &mut state.alarm {
            alarm.set_to = None;
        }
        state.memories.due(now)
    });
    let mut may_look = true;
    for lock in due {
        may_look = may_look && may_write(ctx) && executor::look(ctx, &lock);
        if !may_look {
            executor::time_out(&lock);
            state::with(|state| state.memories.mark(lock, Mark::Left));
            look_soon();
        }
    }
    set();
}

/// Locks were marked: they are looked at soon, because where that is done nothing may be written.
pub fn look_soon() {
    look_after(0);
}

fn look_after(ms: u64) {
    if !state::with(|state| std::mem::replace(&mut state.is_look_due, true)) {
        ffi::after(ms, look_at_marked);
    }
}

fn look_at_marked(ctx: &Ctx) {
    state::with(|state| state.is_look_due = false);
    publish::gone(ctx);
    if may_write(ctx) {
        // A cluster that is down is down for every lock.
        let mut is_up = true;
        for (lock, why) in state::with(|state| state.memories.take_marked()) {
            let is_done = is_up && executor::look(ctx, &lock);
            is_up = is_done;
            if why == Mark::Changed || !is_done {
                executor::look_for_sessions(ctx, &lock);
            }
            if !is_done {
                state::with(|state| state.memories.mark(lock, why));
            }
        }
    }
    if state::with(|state| state.is_primary && state.memories.has_marked()) {
        look_after(RETRY_MS);
    }
    set();
}

/// The server asserts that nothing is written while it is paused.
fn may_write(ctx: &Ctx) -> bool {
    state::with(|state| state.is_primary) && !ctx.is_paused()
}
