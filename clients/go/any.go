package rlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"rlock.example/rlock/internal/machine"
)

// Any is one of many locks. Any number of goroutines may use it.
type Any struct {
	l       *Locker
	pool    string
	keys    []string
	choices []Option
}

// Any is one of many: the write lock of the first of these keys that is free. Callers wait in line for a permit of the key
// pool, which has as many permits as there are keys. The options are Wait, Lease, MaxQueue, Acks and Session.
func (l *Locker) Any(pool string, keys []string, choices ...Option) *Any {
	a := &Any{l: l, pool: pool, choices: choices}
	for _, key := range keys {
		if !slices.Contains(a.keys, key) {
			a.keys = append(a.keys, key)
		}
	}
	return a
}

// Lock waits until it has acquired one of them, the wait has passed, or ctx ends. [Hold.Key] says which one it is.
func (a *Any) Lock(ctx context.Context, choices ...Option) (*Hold, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if len(a.keys) == 0 || slices.Contains(a.keys, a.pool) {
		return nil, refused("Any needs at least one key, and a name for all of them that is none of them")
	}
	all := append(slices.Clone(a.choices), choices...)
	o, err := a.l.options(all)
	if err == nil && (o.mode != "WRITE" || o.isNamed) {
		err = refused("the options of Any are Wait, Lease, MaxQueue, Acks and Session")
	}
	if err != nil {
		return nil, err
	}
	begin := now() + 1
	permit, err := a.l.Lock(ctx, a.pool, append(all, Limit(len(a.keys)))...)
	if err != nil {
		return nil, err
	}
	until := machine.Forever
	if o.wait < machine.Forever-begin {
		until = begin + o.wait
	}
	hold, err := a.first(ctx, all, until)
	if err != nil {
		_ = permit.releaseSoon(ctx)
		return nil, err
	}
	hold.permit = permit
	return hold, nil
}

// first acquires the first of the keys that is free.
func (a *Any) first(ctx context.Context, choices []Option, until machine.Ms) (*Hold, error) {
	for pause := machine.FirstPause; ; pause = min(2*pause, machine.LongestPause) {
		for _, key := range a.keys {
			hold, err := a.l.TryLock(ctx, key, choices...)
			if !errors.Is(err, ErrNotAcquired) {
				return hold, err
			}
		}
		// All are taken, so somebody holds a lock without a permit: no event reports when that hold ends.
		left := until - now()
		if left <= 0 {
			return nil, ErrNotAcquired
		}
		select {
		case <-time.After(duration(min(pause, left))):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-a.l.closing.Done(): // then the next request says so
		}
	}
}
