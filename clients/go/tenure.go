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
	depth  int     // for whoever has the turn of the seat
	since  time.Time

	context context.Context // ends with the hold
	cancel  context.CancelCauseFunc

	mu         sync.Mutex // guards what follows
	machine    *machine.Hold
	lingers    bool
	isLost     bool
	isEnding   bool // its last level is being released
	isReleased bool
	timer      *time.Timer
	own        own  // of a session
	isDoubted  bool // its connection has ended
	tying      own  // the next one
}

// margin is how long before its deadline a hold is given up, because a signal takes time to arrive.
func margin(lease time.Duration) time.Duration {
	return min(time.Second, max(lease/20, 5*time.Millisecond))
}

func newTenure(d *driver, told machine.Output) *tenure {
	t := &tenure{l: d.l, seat: d.seat, o: d.o, token: told.Token, depth: 1, since: time.Now(), lingers: told.Lingers}
	t.context, t.cancel = context.WithCancelCause(context.Background())
	t.machine = machine.NewHold(machine.Kept{
		Token: told.Token, Lease: millis(t.o.lease), Sent: told.Sent, Margin: millis(margin(t.o.lease)),
		HasAcks: t.o.acks > 0, Renews: !t.o.isNotRenewed,
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.o.session {
		t.tied(d.own)
		d.own = own{}
	}
	t.l.holds.Store(t, true)
	t.step(machine.Input{Event: machine.Call})
	return t
}

// entered is told of another level.
func (t *tenure) entered(d *driver, told machine.Output) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.depth++
	t.lingers = t.lingers || told.Lingers
	// By a lease that may be another one.
	t.step(machine.Input{Event: machine.Extend, N: told.Sent + millis(d.o.lease) - millis(t.o.lease)})
}

// tied ties the hold to a connection, whose end is heard of. The one before has ended.
func (t *tenure) tied(own own) {
	t.own.drop()
	t.own = own
	go func() {
		select {
		case <-own.line.ended:
			t.tell(arrival{in: machine.Input{Event: machine.Untied}})
		case <-t.context.Done(): // the connection may serve others
		}
	}()
}

// tell is for whatever comes by itself.
func (t *tenure) tell(arrived arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := arrived.in; in.Event == machine.Seat && in.Yes && t.context.Err() != nil {
		t.seat.leave() // it was lost before it had the seat
		return
	}
	if t.tying.line = cmp.Or(t.tying.line, arrived.line); t.tying.line == nil || arrived.line == nil {
		t.step(arrived.in)
		return
	}
	if t.step(arrived.in); t.tying.answer == nil { // nobody needs it any more
		t.tying.drop()
	}
}

// step does what follows, for whoever has the mutex.
func (t *tenure) step(in machine.Input) {
	for _, out := range t.machine.Step(now(), in) {
		switch out.Act {
		case machine.Say:
			t.isLost = true
			t.l.telemetry.ended(t.o.called(t.seat.id.key), t.since, true)
			t.cancel(ErrLost)
		case machine.Done:
			t.over()
		case machine.Sleep:
			if t.timer == nil {
				t.timer = time.AfterFunc(remaining(out.By), func() { t.tell(arrival{in: machine.Input{Event: machine.Time}}) })
			} else {
				t.timer.Reset(remaining(out.By))
			}
		case machine.Send:
			go t.renew(out)
		case machine.TakeSeat:
			go func() { t.tell(arrival{in: t.takeSeat()}) }()
		case machine.Open:
			next := t.tying.next
			t.tying = own{isAsk: next.isAsk}
			go func() { t.tell(t.l.open(t.seat.id.key, next.node, out.By)) }()
		case machine.AskAlone:
			t.tying.ask(t.o.alone(t.seat.id.key, out.Depth, out))
			go t.await(t.tying, out.By)
		case machine.Doubt:
			t.isDoubted = true
		case machine.Tied:
			t.tied(t.tying)
			t.isDoubted = false
			t.tying = own{}
		case machine.Drop:
			t.tying.drop()
		case machine.Leave:
			t.seat.leave()
		}
	}
}

// renew asks the server to renew the hold.
func (t *tenure) renew(op machine.Output) {
	arrived := t.l.send(t.seat.id.key, t.o, 0, op)
	t.mu.Lock()
	if arrived.in.Outcome.Ending != machine.Token && !t.isEnding && !t.isLost {
		t.l.telemetry.failedRenewals.Add(1)
	}
	t.mu.Unlock()
	t.tell(arrived)
}

// takeSeat takes the seat, unless the depth is being changed.
func (t *tenure) takeSeat() machine.Input {
	select {
	case t.seat.turn <- struct{}{}:
		t.seat.use()
		return machine.Input{Event: machine.Seat, Yes: true, N: machine.Ms(t.depth)}
	default:
		return machine.Input{Event: machine.Seat}
	}
}

// await waits for the reply on the connection that the hold is being tied to.
func (t *tenure) await(asked own, by machine.Ms) {
	told := machine.Input{Event: machine.Own, Outcome: machine.Outcome{Ending: machine.Silent}}
	select {
	case reply := <-asked.answer:
		told.Outcome, _ = t.l.heard(&asked, reply)
		t.mu.Lock()
		t.tying.next = asked.next
		t.mu.Unlock()
	case <-time.After(remaining(by)):
	}
	t.tell(arrival{in: told})
}

// over is the end of it.
func (t *tenure) over() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.l.holds.Delete(t)
	if !t.isLost {
		t.l.telemetry.ended(t.o.called(t.seat.id.key), t.since, false)
	}
	t.cancel(ErrReleased)
	switch {
	case t.own.line == nil:
	case t.isReleased:
		t.own.keep(cap(t.l.slots))
	default: // what may still be tied to it ends with it
		t.own.drop()
	}
}

// lose ends it at once: the server has said so, or nobody renews it any more.
func (t *tenure) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step(machine.Input{Event: machine.Gone})
}

// isSure says whether a user may rely on it. The server may have ended a session whose connection has broken.
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

// release releases a level.
func (t *tenure) release() error {
	t.seat.turn <- struct{}{}
	t.take()
	if t.seat.tenure != t {
		t.rest()
		t.seat.leave()
		return fmt.Errorf("%w: %s", ErrLost, t.seat.id.key)
	}
	isLost := t.context.Err() != nil
	patience := t.deadline() - now()
	if isLost {
		patience = machine.Reply / 4
	}
	t.mu.Lock()
	d := &driver{l: t.l, seat: t.seat, o: t.o, depth: t.depth, isDirect: true, machine: machine.NewRelease(machine.Level{
		Patience: patience, Lease: millis(t.o.lease), Depth: t.depth, Token: t.token, Deadline: t.machine.Deadline(),
		Lingers: t.lingers,
	})}
	if t.depth == 1 {
		t.isEnding = true
		t.step(machine.Input{Event: machine.Releasing})
	}
	t.mu.Unlock()
	told := d.untilTold()
	defer d.rest()
	if told.Tell == machine.Lost {
		t.lose()
		t.rest()
	}
	if t.depth--; t.depth == 0 {
		t.seat.tenure = nil
		t.mu.Lock()
		t.isReleased = told.Tell == machine.IsReleased && !isLost
		t.step(machine.Input{Event: machine.Released})
		t.mu.Unlock()
	}
	switch {
	case isLost, told.Tell == machine.Lost:
		return fmt.Errorf("%w: %s", ErrLost, t.seat.id.key)
	case told.Tell == machine.IsReleased:
		return nil
	}
	trouble := typed(d.trouble)
	if trouble == nil {
		trouble = errors.New("no answer in time")
	}
	return fmt.Errorf("%w: %s may be held until its lease ends: %w", ErrUnavailable, t.seat.id.key, trouble)
}
