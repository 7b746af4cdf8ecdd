//! The signals that end a program. `rlock run` passes them on to its command.

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// Signals that end a program, except those that our parent ignores (`nohup`).
pub(crate) struct Ending([(Option<Signals>, Signal); 4]);

impl Ending {
    pub(crate) fn new() -> std::io::Result<Ending> {
        let ignored = ignored();
        let listen = |kind: SignalKind, to: Signal| {
            let is_ignored = ignored & (1 << (to.as_raw() - 1)) != 0;
            Ok::<_, std::io::Error>((if is_ignored { None } else { Some(signal(kind)?) }, to))
        };
        Ok(Ending([
            listen(SignalKind::terminate(), Signal::TERM)?,
            listen(SignalKind::interrupt(), Signal::INT)?,
            listen(SignalKind::hangup(), Signal::HUP)?,
            listen(SignalKind::quit(), Signal::QUIT)?,
        ]))
    }

    pub(crate) async fn next(&mut self) -> Signal {
        let Ending([terminate, interrupt, hangup, quit]) = self;
        tokio::select! {
            () = came(&mut terminate.0) => terminate.1,
            () = came(&mut interrupt.0) => interrupt.1,
            () = came(&mut hangup.0) => hangup.1,
            () = came(&mut quit.0) => quit.1,
        }
    }
}

async fn came(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

/// The mask of ignored signals, from the system.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

/// The exit code for a program that this signal ended.
pub(crate) fn by_signal(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}
