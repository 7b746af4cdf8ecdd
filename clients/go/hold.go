package rlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Hold is one level of a held lock. It is renewed every third of its lease until it is released.
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

// Token is the fencing token: greater than all before it. The resource that is written to should refuse smaller ones.
func (h *Hold) Token() int64 { return h.token }

// Key is the lock's key.
func (h *Hold) Key() string { return h.entry.key }

// Owner is the owner's name.
func (h *Hold) Owner() string { return h.entry.id.owner }

// Context ends when the hold is lost, with [ErrLost] as its cause, or released, with [ErrReleased]. A hold is lost at
// once when the server reports so, and shortly before its deadline when no renewal succeeds. The deadline counts from
// when the last answered renewal was sent.
func (h *Hold) Context() context.Context { return h.context }

// Deadline is until when the hold is certain if the server does not answer again.
func (h *Hold) Deadline() time.Time {
	h.entry.mu.Lock()
	defer h.entry.mu.Unlock()
	return h.entry.deadline
}

// IsHeld also reads the clock, so it is correct even right after this process slept.
func (h *Hold) IsHeld() bool {
	return h.context.Err() == nil && !h.isOver.Load() && time.Now().Before(h.Deadline())
}

// Release releases the level. [ErrLost] means that the hold ended before: others may have worked at the same time. Any
// other error means that the release did not reach the server before the lease expired.
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
