//! The machine's time. It continues while the computer sleeps, as leases do; timers stop meanwhile,
//! and may be late.

use std::time::Duration;

use tokio::time::Instant;

use crate::machine::{self, Ms};

/// Rounded down, so that no lease begins too late.
pub(crate) fn now() -> Ms {
    ms(clock())
}

/// When a timer has to fire, unless the computer sleeps meanwhile.
pub(crate) fn at(time: Ms) -> Instant {
    let now = Instant::now(); // first: a pause between the two makes the answer earlier, never later
    instant(time, now, clock())
}

fn instant(time: Ms, now: Instant, clock: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(10 * 366 * 86_400);
    let time = Duration::from_millis(time);
    match time.checked_sub(clock) {
        Some(left) => now + left.min(LONG),
        None => now.checked_sub(clock - time).unwrap_or(now),
    }
}

pub(crate) fn ms(time: Duration) -> Ms {
    Ms::try_from(time.as_millis()).unwrap_or(machine::FOREVER)
}

/// Since the system started.
#[cfg(target_os = "linux")]
fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

/// Since the first call.
#[cfg(not(target_os = "linux"))]
fn clock() -> Duration {
    static BEGINNING: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGINNING.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_nearer_after_the_computer_slept() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(instant(5000, now, 2 * second), now + 3 * second);
        assert_eq!(instant(5000, now, 4 * second), now + second);
        assert_eq!(instant(5000, now, 6 * second), now - second);
        assert!(instant(machine::FOREVER, now, second) > now + 86_400 * second);
        assert!(at(super::now() + 1000) <= Instant::now() + second);
    }

    /// The system's uptime includes the time that it slept.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_counts_the_time_asleep() {
        let up = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
            Duration::from_secs_f64(seconds)
        };
        let (before, now, after) = (up(), clock(), up());
        let step = Duration::from_millis(20);
        assert!(before <= now + step && now <= after + step, "{before:?}, {now:?}, {after:?}");
    }
}
