package rlock

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Event is something that has ended: an acquisition, or a hold.
type Event struct {
	Key  string        // of several locks, all keys, separated by ", "
	Took time.Duration // how long it took, or was held
	At   time.Time     // when it ended
	Err  error         // why an acquisition ended without the lock
}

// Listener receives the events of a [Locker]. One goroutine of the package calls it, one event at a time. If it panics,
// that is logged once, and counted. While it is busy, events wait; if 1000 wait, further events are dropped and
// counted.
type Listener interface {
	// Waited: an acquisition has ended. ctx has the values of the acquisition's context, and does not end.
	Waited(ctx context.Context, event Event)
	// Held: a hold was released.
	Held(event Event)
	// Lost: a hold was lost.
	Lost(event Event)
}

// Listen makes the Locker report events to a listener.
func Listen(listener Listener) Setting { return func(l *Locker) { l.telemetry.listener = listener } }

// Counts has the current numbers of a Locker, and how much has been lost or has failed.
type Counts struct {
	Held           int    // holds at the moment
	Waiting        int    // acquisitions under way
	Lost           uint64 // holds that were lost
	FailedRenewals uint64 // requests to renew a hold that were refused or not answered
	Unreported     uint64 // events that the listener was not informed of, or at which it panicked
}

// Counts returns the numbers as of now.
func (l *Locker) Counts() Counts {
	t := &l.telemetry
	counts := Counts{
		Waiting: int(t.waiting.Load()), Lost: t.lost.Load(), FailedRenewals: t.failedRenewals.Load(),
		Unreported: t.unreported.Load(),
	}
	l.holds.Range(func(_, _ any) bool {
		counts.Held++
		return true
	})
	return counts
}

const mostUntold = 1000

type telemetry struct {
	listener                         Listener // nil: nobody
	events                           chan func(Listener)
	waiting                          atomic.Int64
	lost, failedRenewals, unreported atomic.Uint64
	hasPanicked                      bool
}

// start begins to pass events to the listener. It stops when closing has ended and no event remains.
func (t *telemetry) start(closing context.Context) {
	if t.listener == nil {
		return
	}
	t.events = make(chan func(Listener), mostUntold)
	go func() {
		for {
			select {
			case event := <-t.events:
				t.call(event)
				continue
			case <-closing.Done():
			}
			select {
			case event := <-t.events:
				t.call(event)
			case <-time.After(time.Second): // what ends because of it has ended
				return
			}
		}
	}()
}

// call survives whatever the listener does, even if it ends its goroutine.
func (t *telemetry) call(event func(Listener)) {
	done := make(chan struct{})
	go func() {
		isOver := false
		defer close(done)
		defer func() {
			if problem := recover(); problem != nil || !isOver {
				t.unreported.Add(1)
				if !t.hasPanicked {
					t.hasPanicked = true
					slog.Error("rlock: the listener failed; this is logged once", "problem", problem)
				}
			}
		}()
		event(t.listener)
		isOver = true
	}()
	<-done
}

func (t *telemetry) tell(event func(Listener)) {
	if t.events == nil {
		return
	}
	select {
	case t.events <- event:
	default:
		t.unreported.Add(1)
	}
}

// waits counts an acquisition until the returned function is called.
func (t *telemetry) waits(ctx context.Context, key string) func(error) {
	begin := time.Now()
	t.waiting.Add(1)
	return func(err error) {
		t.waiting.Add(-1)
		if t.events == nil {
			return
		}
		ctx, event := context.WithoutCancel(ctx), Event{Key: key, Took: time.Since(begin), At: time.Now(), Err: err}
		t.tell(func(listener Listener) { listener.Waited(ctx, event) })
	}
}

// ended reports the end of a hold.
func (t *telemetry) ended(key string, since time.Time, isLost bool) {
	if isLost {
		t.lost.Add(1)
	}
	event := Event{Key: key, Took: time.Since(since), At: time.Now()}
	t.tell(func(listener Listener) {
		if isLost {
			listener.Lost(event)
		} else {
			listener.Held(event)
		}
	})
}
