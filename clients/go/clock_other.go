//go:build !linux

package rlock

// nanos is a clock that never jumps.
func nanos() int64 { return sinceStart() }
