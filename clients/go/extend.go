package rlock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"rlock.example/rlock/internal/machine"
)

// Extend makes the hold last at least lease from now; it never shortens it. A hold is renewed anyway, unless it was
// acquired with [NoRenewal]. It returns [ErrLost] if the hold was lost, [ErrReleased] if it is being released or was,
// and [ErrUnavailable] if the outcome is unknown.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	if err := cmp.Or(checkContext(ctx), checkLease(lease)); err != nil {
		return err
	}
	if h.isOver.Load() {
		return ErrReleased
	}
	return h.tenure.extend(ctx, lease)
}

// Valid asks the server whether the hold is alive. If not, the hold counts as lost from now on. [Hold.IsHeld] does not
// ask.
func (h *Hold) Valid(ctx context.Context) (bool, error) {
	if err := checkContext(ctx); err != nil {
		return false, err
	}
	if !h.IsHeld() {
		return false, nil
	}
	t := h.tenure
	for _, one := range t.o.parts(h.Key()) {
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
		takes = machine.Acks
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
			return t.extends(&o, machine.Output{Request: machine.Renew, Token: t.token, By: by})
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
		case <-t.context.Done(): // also when the Locker is closed
		}
	}
}

// extends sends one request to renew the hold, and waits until replicas have acknowledged it.
func (t *tenure) extends(o *options, op machine.Output) (arrived arrival) {
	a := asks{l: t.l, key: t.seat.id.key, o: o}
	defer func() { a.ear.hush() }()
	do := func(act machine.Act) machine.Event {
		op.Act = act
		arrived = ends(op, a.begin(op, true))
		a.ended(op, arrived)
		return arrived.in.Event
	}
	if o.acks > 0 && do(machine.Listen) != machine.Listening {
		return arrived
	}
	if do(machine.Send); arrived.in.Outcome.Ending == machine.Waiting && do(machine.Wait) != machine.Message {
		arrived.in.Outcome.Ending, arrived.err = machine.Silent, errSilent
	}
	return arrived
}
