package rlock

import (
	"slices"
	"time"
)

// look is how often a drain looks whether anybody holds.
const look = 10 * time.Millisecond

// Drain acquires nothing from now on, ends what waits with [redis.ErrClosed], and waits until what is held has been
// released; then it closes the Locker. It returns the keys that are still held when the time is up: their holds are lost at
// once, and others are kept out until the leases end.
func (l *Locker) Drain(timeout time.Duration) []string {
	l.stop()
	looks := time.NewTicker(look)
	defer looks.Stop()
	for end := time.After(timeout); l.underWay.Load() > 0 || len(l.held()) > 0; {
		select {
		case <-looks.C:
			continue
		case <-end:
		case <-l.closing.Done():
		}
		break
	}
	left := l.held()
	_ = l.Close()
	return left
}

// held are the keys of all holds.
func (l *Locker) held() (keys []string) {
	l.holds.Range(func(held, _ any) bool {
		t := held.(*tenure)
		keys = append(keys, t.o.keys(t.seat.id.key)...)
		return true
	})
	slices.Sort(keys)
	return keys
}
