package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"rlock.example/rlock/internal/machine"
)

// tenure is a hold from its first level to its last, shared by all its levels.
type tenure struct {
	l      *Locker
	seat   *seat
	o      *options
	token  int64
	others []*seat // at further keys
	depth  int     // guarded by the seat's turn
	since  time.Time

	context context.Context // ends with the hold
	cancel  context.CancelCauseFunc

	mu         sync.Mutex // guards what follows
	renewals   asks       // with the lease of any level; own is the next connection of a session
	machine    *machine.Hold
	lingers    bool
	isLost     bool
	isEnding   bool // its last level is being released
	isReleased bool
	timer      *time.Timer
	tie        ownConn            // the connection of a session
	isDoubted  bool               // it has ended
	watching   context.CancelFunc // ends the observation of the hold at the server; nil: there is none
}

// margin is how long before its deadline a hold is given up, because a signal takes time to arrive.
func margin(lease time.Duration) time.Duration {
	return min(time.Second, max(lease/20, 5*time.Millisecond))
}

func newTenure(d *driver, told machine.Output) *tenure {
	t := &tenure{l: d.l, seat: d.seat, o: d.o, token: told.Token, depth: 1, since: time.Now(), lingers: told.Lingers}
	t.renewals = asks{l: d.l, key: d.key}
	t.context, t.cancel = context.WithCancelCause(context.Background())
	t.keep(d.o, told.Sent)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.o.session {
		t.tied(d.own)
		d.own = ownConn{}
	}
	t.l.holds.Store(t, true)
	t.step(machine.Input{Event: machine.Call})
	if t.l.isClosed() { // Close may have looked for holds just before
		t.step(machine.Input{Event: machine.Gone})
	}
	return t
}

// keep starts the renewal of the hold, unless o disables it.
func (t *tenure) keep(o *options, sent machine.Ms) {
	t.renewals.o = o
	t.machine = machine.NewHold(machine.Kept{
		Token: t.token, Lease: millis(o.lease), Sent: sent, Margin: millis(margin(o.lease)),
		HasAcks: o.acks > 0, Renews: !o.isNotRenewed,
	})
}

// entered records another level, whose lease may be another one.
func (t *tenure) entered(d *driver, told machine.Output) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.depth++
	t.lingers = t.lingers || told.Lingers
	before := t.renewals.o
	if t.context.Err() != nil || d.o.isNotRenewed || !before.isNotRenewed && d.o.lease <= before.lease {
		t.extended(told.Sent, d.o.lease)
		return
	}
	renewed := *before
	renewed.isNotRenewed, renewed.lease = false, d.o.lease
	deadline := t.machine.Deadline()
	t.keep(&renewed, told.Sent)
	t.step(machine.Input{Event: machine.Extend, N: deadline - millis(renewed.lease)})
	t.step(machine.Input{Event: machine.Call})
	if t.isDoubted {
		t.step(machine.Input{Event: machine.Untied})
	}
}

// extended records a lease that began when its request was sent.
func (t *tenure) extended(sent machine.Ms, lease time.Duration) {
	t.step(machine.Input{Event: machine.Extend, N: sent + millis(lease) - millis(t.renewals.o.lease)})
}

// tied records the connection that the hold is tied to, and watches for its end. The previous connection has ended.
func (t *tenure) tied(own ownConn) {
	t.tie.end(false)
	t.tie = own
	go func() {
		select {
		case <-own.line.ended:
			t.pass(machine.Untied)
		case <-t.context.Done(): // the connection may serve others
		}
	}()
}

// pass gives the machine an event that does not end an operation.
func (t *tenure) pass(event machine.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step(machine.Input{Event: event})
}

// step passes an input to the machine and carries out its outputs. The caller holds the mutex.
func (t *tenure) step(in machine.Input) {
	for _, out := range t.machine.Step(now(), in) {
		switch out.Act {
		case machine.Say:
			mayStand := t.o.session && now()+millis(margin(t.o.lease)) >= t.machine.Deadline()
			t.isLost = true
			t.l.telemetry.ended(t.called(), t.since, true)
			t.cancel(ErrLost)
			if mayStand {
				t.undoIfFree()
			}
		case machine.Done:
			t.over()
		case machine.Sleep:
			pause := min(time.Hour, remaining(out.By)) // a timer stands still while the computer sleeps
			if t.timer == nil {
				t.timer = time.AfterFunc(pause, func() { t.pass(machine.Time) })
			} else {
				t.timer.Reset(pause)
			}
		case machine.TakeSeat:
			go t.sit(t.machine)
		case machine.Send, machine.Listen, machine.Wait, machine.Open, machine.AskAlone:
			go t.goOn(t.machine, out, t.renewals.begin(out, false))
		case machine.Doubt:
			t.isDoubted = true
		case machine.Tied:
			t.tied(t.renewals.own)
			t.isDoubted = false
			t.renewals.own = ownConn{}
		case machine.Drop:
			t.renewals.own.end(false)
		case machine.Leave:
			if t.machine.IsUnsure() {
				t.undo()
			} else {
				t.seat.leave()
			}
		}
	}
}

// goOn passes the end of an operation to the machine, in time even if a user function, such as a hook, does not return.
func (t *tenure) goOn(asks *machine.Hold, op machine.Output, arrives <-chan arrival) {
	arrived := ends(op, arrives)
	t.mu.Lock()
	defer t.mu.Unlock()
	isRenewal := op.Act == machine.Send || op.Act == machine.Wait && arrived.in.Event != machine.Unheard
	if ending := arrived.in.Outcome.Ending; isRenewal && !t.isEnding && !t.isLost &&
		(arrived.in.Event == machine.Time || ending != machine.Token && ending != machine.Waiting) {
		t.l.telemetry.failedRenewals.Add(1)
	}
	if t.renewals.ended(op, arrived); asks == t.machine {
		t.step(arrived.in)
	}
	if arrived.line != nil && !t.machine.IsTying() { // nobody needs it any more
		t.renewals.own.end(false)
	}
}

// sit takes the seat, unless a request is changing the depth.
func (t *tenure) sit(asks *machine.Hold) {
	told := machine.Input{Event: machine.Seat}
	select {
	case t.seat.turn <- struct{}{}:
		t.seat.use()
		told.Yes, told.N = true, machine.Ms(t.depth)
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case asks == t.machine && t.context.Err() == nil:
		t.step(told)
	case told.Yes: // too late
		t.seat.leave()
	}
}

// undoIfFree undoes a session whose deadline has passed. The server keeps it until it notices that the connection is
// closed: until then, the owner would re-enter the hold, and lose it afterward.
func (t *tenure) undoIfFree() {
	select {
	case t.seat.turn <- struct{}{}:
		t.seat.use()
		t.undo()
	default: // the request that changes the depth next finds the loss
	}
}

// undo keeps the seat until an unanswered request to tie the hold can no longer have an effect. If it were executed
// late, it would tie the owner's next hold to a closed connection.
func (t *tenure) undo() {
	d := &driver{asks: asks{l: t.l, key: t.seat.id.key, o: t.o, depth: 1}, seat: t.seat, machine: machine.NewRelease(machine.Level{
		Lease: millis(t.renewals.o.lease), Depth: 1, Token: t.token, Lingers: true,
	})}
	d.start(machine.Cancel)
	go d.rest()
}

// over is called when the hold has ended.
func (t *tenure) over() {
	if t.timer != nil {
		t.timer.Stop()
	}
	if t.watching != nil {
		t.watching()
	}
	t.renewals.ear.hush()
	t.l.holds.Delete(t)
	if !t.isLost {
		t.l.telemetry.ended(t.called(), t.since, false)
	}
	t.cancel(ErrReleased)
	t.tie.end(t.isReleased) // else what may still be tied to it ends with it
}

// mayBeShort is how long a hold lasts before the package observes its end at the server: most holds end sooner.
const mayBeShort = 100 * time.Millisecond

// watch learns from the server when the hold of a write lock ends, which is sooner than by the next renewal.
func (t *tenure) watch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watching != nil || t.isLost || t.isEnding || t.isReleased {
		return
	}
	var watching context.Context
	watching, t.watching = context.WithCancel(t.l.closing)
	time.AfterFunc(mayBeShort, func() {
		for _, one := range t.o.parts(t.seat.id.key) {
			if one.mode == "WRITE" && watching.Err() == nil {
				seen := observer{l: t.l, key: one.key, known: Leader{Token: t.token}, block: millis(t.o.lease)}
				go seen.observe(watching, func(_ Leader, err error) bool {
					if err == nil {
						_ = t.gone()
					}
					return err != nil && isPassing(err) // renewals go on
				})
			}
		}
	})
}

// gone returns the error for users of a hold that has ended, or that the server does not have: the hold is lost, unless
// it was released or is being released.
func (t *tenure) gone() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isEnding && !t.isLost {
		return ErrReleased
	}
	t.step(machine.Input{Event: machine.Gone})
	return fmt.Errorf("%w: %s", ErrLost, t.called())
}

// called returns the name of the lock in messages.
func (t *tenure) called() string { return t.o.called(t.seat.id.key) }

// isSure says whether a user may rely on the hold. If a session's connection has broken, the server may have ended the
// hold.
func (t *tenure) isSure() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.isDoubted && now() < t.machine.Deadline()
}

func (t *tenure) deadline() machine.Ms {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.machine.Deadline()
}

// releaseUntil releases a level, but returns when ctx has ended, or a moment later if the reply may be on its way. The
// release then continues in the background.
func (t *tenure) releaseUntil(ctx context.Context) error {
	if ctx.Done() == nil {
		return t.release()
	}
	over := make(chan error, 1)
	go func() { over <- t.release() }()
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-over:
		return err
	case <-time.After(duration(machine.Late)):
	}
	if t.context.Err() != nil && !errors.Is(context.Cause(t.context), ErrReleased) {
		return fmt.Errorf("%w: %s", ErrLost, t.called())
	}
	return fmt.Errorf("%w: %s may be held until its lease ends: %w", ErrUnavailable, t.called(), context.Cause(ctx))
}

// release releases a level. If another request of this owner takes too long, the level is released after that request,
// and the caller does not learn the result.
func (t *tenure) release() error {
	if t.take(max(t.deadline(), now()+machine.Patience)) {
		return t.releaseInTurn()
	}
	go func() {
		t.take(machine.Forever)
		_ = t.releaseInTurn()
	}()
	if t.context.Err() != nil {
		return fmt.Errorf("%w: %s", ErrLost, t.called())
	}
	return fmt.Errorf("%w: %s may be held until its lease ends: another request of %s is under way", ErrUnavailable, t.called(), t.o.owner)
}

// take takes all of the seats or none, and waits for them until then at most.
func (t *tenure) take(by machine.Ms) bool {
	if !t.seat.take(by) {
		return false
	}
	for at, other := range t.others {
		if !other.take(by) {
			for _, taken := range t.others[:at] {
				<-taken.turn
			}
			<-t.seat.turn
			return false
		}
	}
	return true
}

// releaseInTurn releases the hold. The caller must have its seats.
func (t *tenure) releaseInTurn() error {
	t.seat.others = t.others
	if t.seat.tenure != t { // a later hold has passed it
		t.seat.leave()
		return fmt.Errorf("%w: %s", ErrLost, t.called())
	}
	isLost := t.context.Err() != nil
	patience := t.deadline() - now()
	if isLost {
		patience = machine.Reply / 4
	}
	t.mu.Lock()
	d := &driver{asks: asks{l: t.l, key: t.seat.id.key, o: t.o, depth: t.depth}, seat: t.seat, isDirect: true, machine: machine.NewRelease(machine.Level{
		Patience: patience, Lease: millis(t.renewals.o.lease), Depth: t.depth, Token: t.token, Deadline: t.machine.Deadline(),
		Lingers: t.lingers,
	})}
	if t.depth == 1 {
		t.isEnding = true
		if t.watching != nil { // it is no loss
			t.watching()
		}
		t.step(machine.Input{Event: machine.Releasing})
	}
	t.mu.Unlock()
	told := d.untilTold()
	defer d.rest()
	if told.Tell == machine.Lost {
		t.pass(machine.Gone)
		t.rest()
	}
	if t.depth--; t.depth == 0 {
		t.seat.tenure = nil
		for _, other := range t.others {
			other.tenure = nil
		}
		t.mu.Lock()
		t.isReleased = told.Tell == machine.IsReleased && !isLost
		t.step(machine.Input{Event: machine.Released})
		t.mu.Unlock()
	}
	switch {
	case isLost, told.Tell == machine.Lost:
		return fmt.Errorf("%w: %s", ErrLost, t.called())
	case told.Tell == machine.IsReleased:
		return nil
	}
	trouble := typed(cmp.Or(d.trouble, errSilent))
	return fmt.Errorf("%w: %s may be held until its lease ends: %w", ErrUnavailable, t.called(), trouble)
}
