package rlock

import "golang.org/x/sys/unix"

// nanos is a clock that continues while the machine sleeps, as leases do.
func nanos() int64 {
	var at unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &at) != nil {
		return sinceStart()
	}
	return at.Nano()
}
