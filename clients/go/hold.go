package rlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Hold is one level of a held lock. It is renewed every third of its lease until it is released.
type Hold struct {
	tenure  *tenure
	context context.Context
	cancel  context.CancelCauseFunc
	unhook  func() bool
	isOver  atomic.Bool
}

// newHold keeps the values of the acquiring context, and not its end.
func newHold(ctx context.Context, t *tenure) *Hold {
	h := &Hold{tenure: t}
	h.context, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	h.unhook = context.AfterFunc(t.context, func() { h.cancel(context.Cause(t.context)) })
	return h
}

// Token is the fencing token: greater than all before it. The resource that is written to should refuse smaller ones.
func (h *Hold) Token() int64 { return h.tenure.token }

// Key is the lock's key, of several locks the first.
func (h *Hold) Key() string { return h.tenure.seat.id.key }

// Keys are the lock's keys, if it is several locks.
func (h *Hold) Keys() []string {
	if g := h.tenure.o.group; g != nil {
		return g.keys()
	}
	return []string{h.Key()}
}

// Owner is the owner's name.
func (h *Hold) Owner() string { return h.tenure.o.owner }

// Context ends when the hold is lost, with [ErrLost] as its cause, or released, with [ErrReleased]. A hold is lost at
// once when the server reports so, and shortly before its deadline when no renewal succeeds. The deadline counts from
// when the last answered renewal was sent.
func (h *Hold) Context() context.Context { return h.context }

// Deadline is until when the hold is certain if the server does not answer again.
func (h *Hold) Deadline() time.Time {
	return time.Now().Add(remaining(h.tenure.deadline()))
}

// IsHeld also reads the clock, so it is correct even right after this process, or the machine, slept. It is false for a
// session whose connection has broken, until the server has tied it to a new one.
func (h *Hold) IsHeld() bool {
	return h.tenure.context.Err() == nil && !h.isOver.Load() && h.tenure.isSure()
}

// Release releases the level. [ErrLost] means that the hold ended before: others may have worked at the same time. Any
// other error means that the release did not reach the server before the lease expired, or, after three seconds at least,
// that another request of this owner is still under way: then the level is released behind it.
func (h *Hold) Release() error {
	if h.isOver.Swap(true) {
		return ErrReleased
	}
	h.unhook()
	err := h.tenure.release()
	if errors.Is(err, ErrLost) {
		h.cancel(ErrLost)
	}
	h.cancel(ErrReleased)
	return err
}
