package rlock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// Extend makes the hold last at least lease from now; it never shortens it. A hold is renewed anyway, unless it was
// acquired with [NoRenewal]. It returns [ErrLost] if the hold was lost, [ErrReleased] if it is being
// released or was, and [ErrUnavailable] if nothing is known.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	if err := cmp.Or(checkContext(ctx), checkLease(lease)); err != nil {
		return err
	}
	if h.isOver.Load() {
		return ErrReleased
	}
	return h.tenure.extend(ctx, lease)
}

// Valid asks the server whether the hold is alive. If it is not, it is lost from now on. [Hold.IsHeld] does not ask.
func (h *Hold) Valid(ctx context.Context) (bool, error) {
	if err := checkContext(ctx); err != nil {
		return false, err
	}
	if !h.IsHeld() {
		return false, nil
	}
	t := h.tenure
	parts := []One{{key: h.Key(), mode: t.o.mode}}
	if t.o.group != nil {
		parts = t.o.group.parts
	}
	for _, one := range parts {
		key := one.key
		reply := t.l.servers.heed(ctx, key, []any{"RLOCK.CHECK", key, t.token, one.mode})
		if err := reply.Err(); err != nil && code(err) != "WRONGTYPE" {
			switch {
			case ctx.Err() != nil:
				return false, context.Cause(ctx)
			case isPassing(err):
				err = unavailable(key, err)
			}
			return false, typed(err)
		}
		if alive, err := reply.Int64(); err != nil || alive == 0 {
			_ = t.gone()
			return false, nil
		}
	}
	return true, nil
}

func (t *tenure) extend(ctx context.Context, lease time.Duration) error {
	o := *t.o
	o.lease = lease
	takes := machine.Reply
	if o.acks > 0 {
		takes *= 3
	}
	begin := now()
	var trouble error
	for pause := machine.FirstPause; ; pause = min(2*pause, machine.LongestPause) {
		switch {
		case t.context.Err() != nil:
			return t.gone()
		case ctx.Err() != nil:
			return ended(ctx, trouble)
		}
		sent := now()
		by := min(begin+machine.Patience+takes, sent+takes, t.deadline())
		arrived, isOver := heed(ctx, func() arrival {
			return t.l.send(t.seat.id.key, &o, 0, machine.Output{Request: machine.Renew, Token: t.token, By: by})
		})
		if !isOver {
			return ended(ctx, trouble)
		}
		trouble = arrived.err
		switch outcome := arrived.in.Outcome; {
		case t.context.Err() != nil:
			return t.gone()
		case outcome.Ending == machine.Token:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.extended(sent, lease)
			return nil
		case outcome.Code == "NOTHELD", outcome.Code == "WRONGTYPE":
			return fmt.Errorf("%w: %w", t.gone(), trouble)
		case !isPassing(trouble):
			return typed(trouble)
		case now()-begin >= machine.Patience:
			return unavailable(t.called(), typed(trouble))
		}
		select {
		case <-time.After(duration(pause)):
		case <-ctx.Done():
			return ended(ctx, trouble)
		case <-t.context.Done():
			return t.gone()
		case <-t.l.closing.Done():
			return redis.ErrClosed
		}
	}
}
