package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// Choice says what happens to the interval if a run of [Locker.Once] fails, or its process dies.
type Choice string

const (
	// Keep: nobody else runs in this interval.
	Keep Choice = "keep"
	// Again: another run may begin, at once, or when the lease of a process that died has ended.
	Again Choice = "again"
)

// IfItFails is an option of [Locker.Once]. The default is [Keep].
func IfItFails(choice Choice) Option {
	return func(o *options) {
		if choice != Keep && choice != Again {
			o.refuse(refused("IfItFails must be Keep or Again, not %q", choice))
		}
		o.ifItFails = choice
	}
}

// Once calls work unless a run began within the last interval, on any machine, and returns whether it called work. It
// does not wait, unless [Wait] says so. Its other options are [IfItFails], [Acks] and, with [Again], [Lease]. Like
// [Locker.Do], it calls work with a context that ends when the hold is lost. With [Keep], the hold is lost if work
// takes longer than the interval.
func (l *Locker) Once(ctx context.Context, key string, every time.Duration, work func(context.Context, *Hold) error, choices ...Option) (bool, error) {
	if err := checkContext(ctx); err != nil {
		return false, err
	}
	if work == nil {
		return false, refused("the function to call is nil")
	}
	if every < leastDuration || every > longestLease {
		return false, refused("an interval must be from %v to %v, not %v", leastDuration, longestLease, every)
	}
	o, err := l.options(append([]Option{Wait(0), IfItFails(Keep)}, choices...))
	if err == nil && (o.mode != "WRITE" || o.session || o.isNamed || o.isNotRenewed || o.maxQueueIs) {
		err = refused("the options of Once are Wait, IfItFails, Lease and Acks")
	}
	if err != nil {
		return false, err
	}
	if o.ifItFails == Keep { // what is granted lasts for the interval, whatever becomes of this process
		o.lease, o.isNotRenewed = every, true
	}
	hold, err := l.lock(ctx, key, o)
	if errors.Is(err, ErrNotAcquired) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	until := now() + 1 + millis(every) // the server has counted from the grant, which was earlier: no interval is short
	isOver := false
	defer func() {
		if isOver { // else a panic, or the end of this goroutine, is under way, and goes on
			return
		}
		if err := hold.endOnce(ctx, until, true); err != nil {
			slog.Warn(fmt.Sprintf("%s: the release failed: %v", key, err))
		}
	}()
	err = hold.during(ctx, work)
	isOver = true
	return true, errors.Join(err, hold.endOnce(ctx, until, err != nil))
}

// endOnce releases the hold of a run. If the run counts, all others are kept out until the interval ends.
func (h *Hold) endOnce(ctx context.Context, until machine.Ms, hasFailed bool) error {
	isAgain := h.tenure.o.ifItFails == Again
	if now() < until && h.IsHeld() && !(isAgain && hasFailed) {
		isKept, err := h.keepOut(ctx, until, isAgain)
		switch {
		case err != nil && isAgain:
			return errors.Join(err, h.releaseSoon(ctx))
		case err != nil:
			return nil // it ends with the interval anyway
		case isKept:
			if err := h.releaseSoon(ctx); !errors.Is(err, ErrLost) {
				return err
			}
			return nil // its lease ended behind the READ
		}
	}
	return h.releaseSoon(ctx)
}

// keepOut acquires READ in addition to WRITE: it is granted at once, outlives the WRITE, and keeps every other WRITE
// out.
func (h *Hold) keepOut(ctx context.Context, until machine.Ms, isAgain bool) (bool, error) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*duration(machine.Patience))
	defer stop()
	if isAgain && h.tenure.o.acks > 0 {
		if err := h.Extend(ctx, duration(until-now())); err != nil {
			return false, err
		}
	}
	words := []any{"RLOCK.ACQUIRE", h.Key(), h.Owner(), "READ", "LEASE", max(1, until-now()), "DEPTH", 1}
	err := h.tenure.l.servers.heed(ctx, h.Key(), words).Err()
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, redis.Nil):
		return false, nil
	case isPassing(err):
		return false, unavailable(h.Key(), err)
	}
	return false, typed(err)
}
