//! Timers and files in the server's loop.

use std::io::Error;
use std::os::fd::AsRawFd;

use super::*;

/// Calls `work` after `ms` milliseconds (0: in this loop iteration or the next), in its own
/// context.
pub fn after(ms: u64, work: fn(&Ctx)) {
    extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, work: *mut c_void) {
        // SAFETY: `work` is the pointer that `after` passed, of this very type.
        let work = unsafe { std::mem::transmute::<*mut c_void, fn(&Ctx)>(work) };
        work(&Ctx(ctx));
    }
    // SAFETY: the detached context lives forever; a function pointer needs no freeing.
    unsafe {
        let create = there(raw::RedisModule_CreateTimer);
        create(DETACHED.load(Relaxed), ms.cast_signed(), Some(on_timer), work as *mut c_void);
    }
}

/// Calls `work` in every loop iteration in which `file` is readable, even while the server is busy
/// with a script: `work` may only read the file and set a timer. `file` must stay open.
///
/// # Errors
/// The server already listens to as many files as `maxclients` allows.
pub fn when_readable(file: &impl AsRawFd, work: fn()) -> Result<(), String> {
    extern "C" fn on_readable(_: c_int, work: *mut c_void, _: c_int) {
        // SAFETY: `work` is the pointer that `when_readable` passed, of this very type.
        let work = unsafe { std::mem::transmute::<*mut c_void, fn()>(work) };
        work();
    }
    let readable = raw::REDISMODULE_EVENTLOOP_READABLE.cast_signed();
    // SAFETY: a number, and a function pointer that needs no freeing. The server checks the number.
    let code = unsafe {
        let add = there(raw::RedisModule_EventLoopAdd);
        add(file.as_raw_fd(), readable, Some(on_readable), work as *mut c_void)
    };
    if code == OK {
        Ok(())
    } else {
        Err(format!("the server refuses the timer: {}", Error::last_os_error()))
    }
}

/// The machine's clock, in microseconds since the Unix epoch; 0 before it. `SystemTime` would
/// repeat checks that cost a hundred instructions.
pub fn epoch_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result, and a clock that every system has.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    let us = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000);
    u64::try_from(us).unwrap_or(0)
}
