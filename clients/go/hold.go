package rlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Hold is one level of a lock that is held. It is renewed every third of its lease until it is released.
type Hold struct {
	entry   *entry
	token   int64
	held    context.Context // the entry's at that time
	context context.Context
	cancel  context.CancelCauseFunc
	unhook  func() bool
	isOver  atomic.Bool
}

// newHold keeps the values of the acquiring context, and not its end.
func newHold(ctx context.Context, e *entry) *Hold {
	h := &Hold{entry: e, token: e.token, held: e.context}
	h.context, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	h.unhook = context.AfterFunc(h.held, func() { h.cancel(context.Cause(h.held)) })
	return h
}

// Token is the fencing token: greater than all before it. What is written to should refuse a smaller one.
func (h *Hold) Token() int64 { return h.token }

// Key is what is locked.
func (h *Hold) Key() string { return h.entry.key }

// Owner is the name that holds.
func (h *Hold) Owner() string { return h.entry.id.owner }

// Context ends when the hold is lost, by [ErrLost] as its cause, or released, by [ErrReleased]. It is lost at once when
// the server says so, and shortly before its deadline when no renewal gets through: the deadline is counted from the
// moment at which the last renewal that was answered had been sent.
func (h *Hold) Context() context.Context { return h.context }

// Deadline is until when the hold is sure if nothing more is heard of the server.
func (h *Hold) Deadline() time.Time {
	h.entry.mu.Lock()
	defer h.entry.mu.Unlock()
	return h.entry.deadline
}

// IsHeld looks at the clock as well: also right after this process slept.
func (h *Hold) IsHeld() bool {
	return h.context.Err() == nil && !h.isOver.Load() && time.Now().Before(h.Deadline())
}

// Release leaves the level. An error that is [ErrLost] says that the hold ended before: others may have worked at the
// same time. Any other one says that the server could not be told before the lease was over.
func (h *Hold) Release() error {
	if h.isOver.Swap(true) {
		return ErrReleased
	}
	h.unhook()
	err := h.entry.release(h.held)
	if errors.Is(err, ErrLost) {
		h.cancel(ErrLost)
	}
	h.cancel(ErrReleased)
	return err
}
