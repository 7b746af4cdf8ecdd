package rlock

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// seat stands for one owner of one key in one mode, at one server: in the whole process, one request at a time has it.
// Two Lockers that use one owner name must not both assume depth 1.
type seat struct {
	id       identity
	users    int           // guarded by seats
	turn     chan struct{} // taken by the request that acquires, releases or undoes
	isUndone atomic.Bool   // the request that has the seat is being undone
	tenure   *tenure       // what is held; guarded by turn
	others   []*seat       // of the same owner at further keys, which it has with this one
}

// identity says who holds what at which server. The owner of a single acquisition is known to nobody else, so the
// server does not matter for it.
type identity struct {
	service          *service
	key, owner, mode string
}

var seats = struct {
	sync.Mutex
	of map[identity]*seat
}{of: map[identity]*seat{}}

// sit returns the seat, when no other request has it any more.
func (l *Locker) sit(ctx context.Context, key string, o *options, begin machine.Ms) (*seat, error) {
	if o.group != nil {
		return l.sitAll(ctx, o, begin)
	}
	return l.sitAt(ctx, key, o, begin)
}

func (l *Locker) sitAt(ctx context.Context, key string, o *options, begin machine.Ms) (*seat, error) {
	id := identity{nil, key, o.owner, o.mode}
	if !o.isNamed {
		s := &seat{id: id, users: 1, turn: make(chan struct{}, 1)}
		s.turn <- struct{}{}
		return s, nil
	}
	wait := o.wait
	if wait == 0 {
		wait = machine.Patience
	}
	var err error
	if id.service, err = l.service(ctx, machine.After(begin, wait), o.notice); err != nil {
		return nil, err
	}
	seats.Lock()
	s := seats.of[id]
	if s == nil {
		s = &seat{id: id, turn: make(chan struct{}, 1)}
		seats.of[id] = s
	}
	s.users++
	seats.Unlock()
	select {
	case s.turn <- struct{}{}:
		return s, nil
	default:
	}
	isUndone := s.isUndone.Load()
	err = fmt.Errorf("%w: %s is being acquired by this owner", ErrNotAcquired, key)
	if isUndone {
		err = fmt.Errorf("%w: %s: an earlier request of %s is not yet undone", ErrUnavailable, key, o.owner)
	}
	timer := time.NewTimer(remaining(machine.After(begin, machine.Come(isUndone, o.wait, l.outage))))
	defer timer.Stop()
	select {
	case s.turn <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-l.closing.Done():
		err = redis.ErrClosed
	case <-timer.C:
	}
	s.unuse()
	return nil, err
}

func (s *seat) leave() {
	for _, other := range s.others {
		other.leave()
	}
	s.others = nil
	<-s.turn
	s.unuse()
}

// take takes the seat, and waits for it until then at most.
func (s *seat) take(by machine.Ms) bool {
	select {
	case s.turn <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(remaining(by))
	defer timer.Stop()
	select {
	case s.turn <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// use registers a hold as a user of the seat.
func (s *seat) use() {
	seats.Lock()
	defer seats.Unlock()
	s.users++
}

// unuse removes a seat that nobody has or uses.
func (s *seat) unuse() {
	seats.Lock()
	defer seats.Unlock()
	if s.users--; s.users == 0 && seats.of[s.id] == s {
		delete(seats.of, s.id)
	}
}

// acquire asks for another level. The caller has the seat.
func (l *Locker) acquire(ctx context.Context, s *seat, o *options, begin machine.Ms) (*Hold, error) {
	held := s.tenure
	if held != nil && held.context.Err() != nil {
		s.tenure, held = nil, nil // it is lost; its holds will say so
	}
	wait := o.wait
	if wait > 0 && wait < machine.Forever {
		wait = max(1, begin+wait-now())
	}
	depth, below, closing := 1, int64(0), l.draining
	if held != nil {
		depth, below, closing = held.depth+1, held.token, l.closing
	}
	if closing.Err() != nil {
		s.leave()
		return nil, redis.ErrClosed
	}
	_, hears := l.servers.heard(s.id.key, place{})
	d := &driver{asks: asks{l: l, key: s.id.key, o: o, depth: depth}, seat: s, gone: ctx.Done(), isDirect: ctx.Done() == nil,
		notice: o.notice, closing: closing.Done()}
	d.machine = machine.NewAttempt(machine.Ask{
		Wait: wait, Patience: machine.Patience, Outage: l.outage, Lease: millis(o.lease), Depth: depth, Below: below,
		Hears: hears, Session: o.session, HasAcks: o.acks > 0,
	})
	told := d.untilTold()
	if told.Tell == machine.Granted {
		hold, err := d.granted(ctx, held, told)
		if err == nil {
			return hold, nil
		}
		d.rest()
		return nil, err
	}
	if told.Tell == machine.Lost && held != nil {
		held.pass(machine.Gone)
	}
	trouble := d.trouble // what goes on may meet more
	d.rest()
	return nil, d.failed(ctx, told, trouble)
}

// granted gives the caller the hold; or releases it, if the caller no longer wants it.
func (d *driver) granted(ctx context.Context, held *tenure, told machine.Output) (*Hold, error) {
	var err error
	switch {
	case d.l.isClosed(), held == nil && d.l.isDraining():
		err = redis.ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if err != nil {
		d.step(machine.Input{Event: machine.Cancel})
		return nil, err
	}
	if held == nil {
		held = newTenure(d, told)
		d.seat.tenure = held
		held.join()
	} else {
		held.entered(d, told)
	}
	d.seat.use()
	hold := newHold(ctx, held)
	d.step(machine.Input{Event: machine.Taken})
	d.rest()
	return hold, nil
}

// failed returns the reason why nothing was acquired.
func (d *driver) failed(ctx context.Context, told machine.Output, trouble error) error {
	key := d.o.called(d.seat.id.key)
	var err error
	switch told.Tell {
	case machine.NotAcquired:
		err = fmt.Errorf("%w: %s is in use", ErrNotAcquired, key)
	case machine.Lost:
		return fmt.Errorf("%w: %s", ErrLost, key)
	case machine.IsRefused:
		return typed(trouble)
	case machine.Closed:
		return redis.ErrClosed
	case machine.Cancelled:
		return ended(ctx, trouble)
	default:
		err = unavailable(key, typed(cmp.Or(trouble, errSilent)))
	}
	if end, has := ctx.Deadline(); has && time.Until(end) < duration(machine.Late) {
		<-ctx.Done() // the server's clock was a little ahead
		err = ended(ctx, trouble)
	}
	return err
}
