package rlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// entry is what an owner holds of a key in one mode, or tries to. The depth counts for the whole process: two Lockers
// that name one owner must not both believe that they are at depth 1.
type entry struct {
	l     atomic.Pointer[Locker] // that begins the hold; the next one may begin it by another
	id    identity
	key   string
	users int           // of this entry in the registry, by whose mutex
	busy  chan struct{} // taken by whoever changes the depth

	mu       sync.Mutex // guards what follows
	depth    int
	token    int64
	o        *options
	deadline time.Time
	context  context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	stop     chan struct{} // ends the renewing, which closes kept
	kept     chan struct{}
	keeper   *time.Timer // begins the renewing; nil: begun
	line     *line       // of a session
}

// identity says who holds what, where. The owner of a single acquisition is known to nobody else, so that it does not
// matter where.
type identity struct {
	service          *service
	key, owner, mode string
}

var registry = struct {
	sync.Mutex
	entries map[identity]*entry
}{entries: map[identity]*entry{}}

// enter returns the entry to change, once nobody else in this process changes it.
func (l *Locker) enter(ctx context.Context, key string, o *options, end time.Time) (*entry, error) {
	id := identity{nil, key, o.owner, o.mode}
	if o.isNamed {
		var err error
		if id.service, err = l.service(ctx, end); err != nil {
			return nil, err
		}
	}
	registry.Lock()
	e := registry.entries[id]
	if e == nil {
		e = &entry{id: id, key: key, busy: make(chan struct{}, 1)}
		registry.entries[id] = e
	}
	e.users++
	registry.Unlock()
	select {
	case e.busy <- struct{}{}:
		return l.begins(e), nil
	default:
	}
	over := make(<-chan time.Time)
	if o.wait == 0 {
		over = time.After(0)
	} else if !end.IsZero() {
		over = time.After(time.Until(end))
	}
	select {
	case e.busy <- struct{}{}:
		return l.begins(e), nil
	case <-ctx.Done():
		e.unuse()
		return nil, context.Cause(ctx)
	case <-l.closing.Done():
		e.unuse()
		return nil, redis.ErrClosed
	case <-over:
		e.unuse()
		return nil, fmt.Errorf("%w: %s is being acquired by this owner", ErrNotAcquired, key)
	}
}

// begins makes l the one that asks for what this owner does not hold yet.
func (l *Locker) begins(e *entry) *entry {
	if e.depth == 0 {
		e.l.Store(l)
	}
	return e
}

func (e *entry) leave() {
	<-e.busy
	e.unuse()
}

// unuse forgets an entry that nobody holds or uses.
func (e *entry) unuse() {
	registry.Lock()
	defer registry.Unlock()
	if e.users--; e.users == 0 {
		delete(registry.entries, e.id)
	}
}

// asks is a request for another level. A hold stays a user of the entry.
func (e *entry) asks(l *Locker, o *options, end time.Time) *ask {
	if e.depth > 0 && e.context.Err() != nil {
		e.over() // what was held is lost; its holds will say so
	}
	depth := e.depth + 1
	return &ask{entry: e, l: l, o: o, words: o.words(e.key, depth), depth: depth, end: end}
}

// end of the patience; zero is never.
func (o *options) end(ctx context.Context) (end time.Time) {
	switch {
	case o.wait == 0:
		end = time.Now().Add(patience) // for a broken connection; nobody waits for the lock
	case o.wait > 0:
		end = time.Now().Add(o.wait)
	}
	if its, has := ctx.Deadline(); has && (end.IsZero() || its.Before(end)) {
		end = its
	}
	return end
}

// quickly is for a lock that is free: one request, by the caller itself. In all other cases patiently asks again.
func (a *ask) quickly(ctx context.Context) *Hold {
	limit := min(quick, a.left())
	if a.o.session && a.line == nil || a.o.acksSet || ctx.Err() != nil || limit <= 0 || a.isAsked {
		return nil
	}
	a.isAsked = true
	a.sent = time.Now()
	token, err := a.l.servers.do(context.WithoutCancel(ctx), limit, a.key, a.words).Int64()
	a.isUnsure = isBroken(err) && !isUnsent(err)
	a.wasRefused = errors.Is(err, redis.Nil)
	if err != nil || a.depth > 1 && token != a.token || ctx.Err() != nil {
		a.isUnsure = a.isUnsure || err == nil
		return nil
	}
	a.begin(a, token)
	hold := newHold(ctx, a.entry)
	<-a.busy
	return hold
}

// patiently asks and waits in its own goroutine, which makes sure that nothing remains when ctx ends, or when no answer
// comes in time.
func (a *ask) patiently(ctx context.Context) (*Hold, error) {
	type result struct {
		hold *Hold
		err  error
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	defer context.AfterFunc(a.l.closing, func() { giveUp(redis.ErrClosed) })()
	done := make(chan result, 1)
	var isLeft atomic.Bool
	go func() {
		hold, err := a.acquire(ctx)
		if hold != nil && !isLeft.CompareAndSwap(false, true) {
			_ = hold.Release() // nobody is there any more to be told
		}
		done <- result{hold, err}
	}()
	var late <-chan time.Time
	if !a.end.IsZero() {
		late = time.After(a.left() + 2*grace + a.patience() - patience)
	}
	select {
	case r := <-done:
		return r.hold, r.err
	case <-late:
		giveUp(fmt.Errorf("%w: no answer in time", ErrUnavailable))
	case <-ctx.Done():
		select {
		case r := <-done:
			if r.hold != nil {
				_ = r.hold.Release()
			}
			return nil, context.Cause(ctx)
		case <-time.After(2 * grace):
		}
	}
	if isLeft.CompareAndSwap(false, true) {
		return nil, context.Cause(ctx)
	}
	r := <-done
	if r.hold != nil {
		_ = r.hold.Release()
	}
	return nil, context.Cause(ctx)
}

func (a *ask) acquire(ctx context.Context) (*Hold, error) {
	e := a.entry
	if hold := a.quickly(ctx); hold != nil {
		return hold, nil
	}
	token, err := a.run(ctx)
	if err == nil && a.depth > 1 && token != e.token {
		e.lose() // the level below is gone, and this one is not what it was thought to be
		a.isUnsure, a.depth, err = true, 1, fmt.Errorf("%w: %s", ErrLost, e.key)
	}
	if err == nil {
		e.begin(a, token)
		hold := newHold(ctx, e)
		<-e.busy
		return hold, nil
	}
	if code(err) == "NOTHELD" {
		e.lose()
	}
	return nil, a.giveUp(ctx, err)
}

// giveUp leaves nothing behind, if necessary after the caller has returned.
func (a *ask) giveUp(ctx context.Context, err error) error {
	if end, has := ctx.Deadline(); has && !a.end.Before(end) && time.Until(end) < tidying &&
		(errors.Is(err, ErrNotAcquired) || errors.Is(err, ErrUnavailable)) {
		<-ctx.Done() // the server's clock was a little ahead
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if a.session != nil {
		a.isUnsure = true
	}
	if !a.isUnsure && !a.isPlaced {
		a.leave()
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer a.leave()
		a.undo()
		if a.session != nil {
			a.session.put(cap(a.l.slots))
		}
	}()
	select {
	case <-done:
	case <-time.After(grace):
	}
	return err
}

// margin is how long before its deadline a hold is given up, because a signal takes time to arrive.
func margin(lease time.Duration) time.Duration {
	return min(time.Second, max(lease/20, 5*time.Millisecond))
}

// begin records the grant, and renews it from the first level on.
func (e *entry) begin(a *ask, token int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	isFirst := a.depth == 1
	e.depth = a.depth
	if a.session != nil {
		e.line = a.session
	}
	deadline := a.sent.Add(a.o.lease)
	if !isFirst {
		if deadline.After(e.deadline) {
			e.deadline = deadline
			e.timer.Reset(time.Until(deadline) - margin(e.o.lease))
		}
		return
	}
	e.token, e.o, e.deadline = token, a.o, deadline
	ctx, cancel := context.WithCancelCause(context.Background())
	e.context, e.cancel = ctx, cancel
	e.timer = time.AfterFunc(time.Until(deadline)-margin(a.o.lease), func() { cancel(ErrLost) })
	e.stop, e.kept = make(chan struct{}), make(chan struct{})
	sent, stop, kept, tie := a.sent, e.stop, e.kept, e.line
	if tie == nil {
		// Most locks are released before there is anything to renew.
		e.keeper = time.AfterFunc(time.Until(sent.Add(a.o.lease/3)), func() { e.keep(sent, stop, kept, nil) })
		return
	}
	e.keeper = nil
	go e.keep(sent, stop, kept, tie)
}

func (e *entry) lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cancel != nil {
		e.cancel(ErrLost)
	}
}

// renew renews the hold, with retries for as long as most.
func (e *entry) renew(o *options, token int64, most time.Duration) error {
	words := []any{"RLOCK.RENEW", e.key, o.owner, o.mode, "LEASE", o.lease.Milliseconds(), "TOKEN", token}
	if o.acksSet {
		words = append(words, "ACKS", o.acks)
	}
	return e.l.Load().serversFor(o).do(context.Background(), most, e.key, words).Err()
}

// keep renews every third of the lease until it is stopped or the hold is lost.
func (e *entry) keep(sent time.Time, stop, kept chan struct{}, tie *line) {
	defer close(kept)
	o, token, ctx := e.o, e.token, e.context
	wake := time.NewTimer(time.Until(sent.Add(o.lease / 3)))
	defer wake.Stop()
	soon := min(max(o.lease/30, 10*time.Millisecond), time.Second)
	ended := tie.endedOrNever()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-ended: // a failover, or the end of the hold: the renewal will tell
			ended = nil
		case <-wake.C:
		}
		sent = time.Now()
		err := e.renew(o, token, min(patience, max(o.lease/3, 50*time.Millisecond)))
		switch {
		case err == nil:
			e.extend(sent.Add(o.lease))
			wake.Reset(time.Until(sent.Add(o.lease / 3)))
			if tie != nil && tie.isEnded() {
				if tie = e.tie(o, token); tie.isEnded() {
					wake.Reset(soon)
				} else {
					ended = tie.ended
				}
			}
		case code(err) == "NOTHELD":
			e.lose()
			return
		default: // the deadline stands; the timer watches it
			wake.Reset(soon)
		}
	}
}

func (e *entry) extend(deadline time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.context.Err() == nil && deadline.After(e.deadline) {
		e.deadline = deadline
		e.timer.Reset(time.Until(deadline) - margin(e.o.lease))
	}
}

// tie ties the hold to a new connection; the old one ended with a failover.
func (e *entry) tie(o *options, token int64) *line {
	select {
	case e.busy <- struct{}{}:
		defer func() { <-e.busy }()
	default:
		return e.line // its depth is being changed: later
	}
	again := *o
	again.wait = 0
	a := &ask{entry: e, l: e.l.Load(), o: &again, depth: e.depth, end: time.Now().Add(min(patience, o.lease/3))}
	a.words = a.o.words(e.key, a.depth)
	got, err := a.blocked(context.Background(), true)
	if err == nil && got == token {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.line = a.session
		return a.session
	}
	if a.session != nil {
		a.session.kill() // another hold: it ends with this connection
		e.lose()
	}
	return e.line
}

// release releases a level of the hold held, and of no earlier or later hold of this owner.
func (e *entry) release(held context.Context) error {
	e.busy <- struct{}{}
	defer e.leave()
	if held != e.context || e.depth == 0 {
		return fmt.Errorf("%w: %s", ErrLost, e.key)
	}
	e.mu.Lock()
	e.depth--
	depth, isLost, deadline := e.depth, e.context.Err() != nil, e.deadline
	e.mu.Unlock()
	if depth == 0 {
		if e.keeper == nil || !e.keeper.Stop() {
			close(e.stop)
			<-e.kept // a renewal under way would come too late
		}
		defer e.over()
	}
	words := []any{"RLOCK.RELEASE", e.key, e.id.owner, e.id.mode, "TOKEN", e.token, "DEPTH", depth}
	var err error
	for wasSent, pause := false, 10*time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		most := patience
		if isLost {
			most = tidying
		}
		err = e.l.Load().servers.do(context.Background(), most, e.key, words).Err()
		if code(err) == "NOTHELD" && wasSent && !isLost && time.Now().Before(deadline) {
			err = nil // by the release whose answer was lost
		}
		wasSent = wasSent || isBroken(err)
		if !isPassing(err) || isLost || e.l.Load().isClosed() || time.Now().Add(pause).After(deadline) {
			break
		}
		time.Sleep(pause)
	}
	switch {
	case isLost || code(err) == "NOTHELD":
		e.lose()
		return fmt.Errorf("%w: %s", ErrLost, e.key)
	case err != nil:
		return fmt.Errorf("%w: %s may be held until its lease ends: %w", ErrUnavailable, e.key, typed(err))
	}
	return nil
}

// over cleans up after the last level, or after the loss.
func (e *entry) over() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.depth = 0
	e.timer.Stop()
	if e.keeper != nil {
		e.keeper.Stop()
	}
	e.cancel(ErrReleased)
	if e.line == nil {
		return
	}
	if errors.Is(context.Cause(e.context), ErrLost) {
		go e.line.kill() // what may still be tied to it ends with it
	} else {
		e.line.put(cap(e.l.Load().slots))
	}
	e.line = nil
}
