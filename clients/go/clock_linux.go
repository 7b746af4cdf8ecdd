package rlock

import "golang.org/x/sys/unix"

// nanos is a clock that goes on while the machine sleeps: leases do so too.
func nanos() int64 {
	var at unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &at) != nil {
		return sinceStart()
	}
	return at.Nano()
}
