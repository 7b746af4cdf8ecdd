package rlock

import (
	"context"
	"errors"
	"time"

	"rlock.example/rlock/internal/machine"
)

// Check acquires the lock of key, waits a moment for it as another owner, and releases it. It returns the error, if
// any. A program that calls it at its start finds out there whether the server, the password, TLS, the module or a
// permission would keep it from its locks.
func (l *Locker) Check(ctx context.Context, key string) (err error) {
	for _, wait := range []time.Duration{0, time.Second} { // long enough for a message
		hold, missed := l.Lock(ctx, key, Wait(wait))
		if wait > 0 && errors.Is(missed, ErrUnavailable) { // a program that starts may be slower than that
			hold, missed = l.Lock(ctx, key, Wait(duration(machine.Patience)))
		}
		switch {
		case missed == nil:
			defer func() { err = errors.Join(err, hold.releaseSoon(ctx)) }()
		case !errors.Is(missed, ErrNotAcquired):
			return missed
		}
	}
	return nil
}
