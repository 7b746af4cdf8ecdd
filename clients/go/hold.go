package rlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"rlock.example/rlock/internal/machine"
)

// Hold is one level of a held lock. It is renewed every third of its lease until it is released.
type Hold struct {
	tenure  *tenure
	context context.Context
	cancel  context.CancelCauseFunc
	unhook  func() bool
	isOver  atomic.Bool
	permit  *Hold // that ends with it: of one of many keys

	seats     []*seat // of an owner that the user has named
	forgotten runtime.Cleanup
}

// newHold keeps the values of the acquiring context, and not its end.
func newHold(ctx context.Context, t *tenure) *Hold {
	h := &Hold{tenure: t}
	h.context, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	h.unhook = context.AfterFunc(t.context, func() { h.cancel(context.Cause(t.context)) })
	if t.o.isNamed {
		// A lost hold that nobody can release any more is garbage-collected, which frees its seats. A live hold is never
		// collected: its own context refers to it.
		h.seats = append([]*seat{t.seat}, t.others...)
		h.forgotten = runtime.AddCleanup(h, func(seats []*seat) {
			for _, s := range seats {
				s.unuse()
			}
		}, h.seats)
	}
	return h
}

// Token is the fencing token: greater than all earlier ones. The resource that is written to should refuse smaller
// ones.
func (h *Hold) Token() int64 { return h.tenure.token }

// Key is the lock's key; for several locks, the first one.
func (h *Hold) Key() string { return h.tenure.seat.id.key }

// Keys are the lock's keys, if it is several locks.
func (h *Hold) Keys() []string { return h.tenure.o.keys(h.Key()) }

// Owner is the owner's name.
func (h *Hold) Owner() string { return h.tenure.o.owner }

// String is the text for logs.
func (h *Hold) String() string {
	left := time.Duration(0)
	if h.IsHeld() {
		left = max(0, remaining(h.tenure.deadline())).Round(100 * time.Millisecond)
	}
	return fmt.Sprintf("%s held by %s, token %d, %v left", h.tenure.called(), h.Owner(), h.Token(), left)
}

// Context ends when the hold is lost, with [ErrLost] as its cause, or released, with [ErrReleased]. A hold is lost at
// once when the server reports so, and shortly before its deadline when no renewal succeeds. The deadline counts from
// when the last answered renewal was sent. For a write lock, the server is asked to report the end from now on.
func (h *Hold) Context() context.Context {
	h.tenure.watch()
	return h.context
}

// Deadline is the time until which the hold is certain, even if the server does not answer again.
func (h *Hold) Deadline() time.Time {
	return time.Now().Add(remaining(h.tenure.deadline()))
}

// IsHeld also reads the clock, so it is correct even right after this process, or the machine, slept. It is false for a
// session whose connection has broken, until the server has tied it to a new one.
func (h *Hold) IsHeld() bool {
	return h.tenure.context.Err() == nil && !h.isOver.Load() && h.tenure.isSure()
}

// Release releases the level. [ErrLost] means that the hold ended before: others may have worked at the same time. Any
// other error means that the release did not reach the server before the lease expired, or, after three seconds at
// least, that another request of this owner is still under way: then the level is released in the background. If the
// server is silent, Release waits for the whole lease; [Hold.ReleaseContext] returns earlier.
func (h *Hold) Release() error { return h.ReleaseContext(context.Background()) }

// ReleaseContext is [Hold.Release], which returns soon after ctx has ended: it then returns [ErrUnavailable] with the
// cause of ctx, and the level is released in the background. It asks the server even if ctx ended before the call.
func (h *Hold) ReleaseContext(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if h.isOver.Swap(true) {
		return ErrReleased
	}
	h.unhook()
	if h.seats != nil {
		h.forgotten.Stop() // the release leaves the seats
	}
	err := h.tenure.releaseUntil(ctx)
	if errors.Is(err, ErrLost) {
		h.cancel(ErrLost)
	}
	h.cancel(ErrReleased)
	if h.permit != nil {
		_ = h.permit.ReleaseContext(ctx)
	}
	return err
}

// releaseSoon releases at the end of the work that ctx was for: once ctx has ended, it waits no longer than the
// patience of such calls.
func (h *Hold) releaseSoon(ctx context.Context) error {
	if ctx.Done() == nil {
		return h.Release()
	}
	soon, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(duration(machine.Patience)):
			stop(context.Cause(ctx))
		case <-soon.Done():
		}
	})()
	return h.ReleaseContext(soon)
}
