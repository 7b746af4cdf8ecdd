package rlock

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"rlock.example/rlock/internal/machine"
)

// driver does what the machine of an attempt or of a release asks for, on behalf of whoever has the seat.
type driver struct {
	machine interface {
		Step(machine.Ms, machine.Input) []machine.Output
	}
	asks
	seat     *seat
	gone     <-chan struct{} // the caller went away; nil once that is no news
	closing  <-chan struct{} // it is closed, or for what it may not acquire any more, drained
	isDirect bool            // the caller itself sends requests

	op      machine.Output // the operation under way
	arrives <-chan arrival // how it has ended

	told    machine.Output
	isTold  bool
	isFree  bool
	trouble error // of the last request
	notice  *notice
}

// errSilent is the error of a request that got no answer.
var errSilent = errors.New("no answer in time")

// notice warns once when an acquisition finds no server.
type notice struct {
	of      string
	at      machine.Ms // 0: it was given
	worries *worries
}

func (n *notice) give(trouble error) {
	if n != nil && n.at > 0 && now() >= n.at {
		n.at = 0
		n.worries.warn(n.of, typed(cmp.Or(trouble, errSilent)))
	}
}

// worries warns once for all acquisitions of a Locker that lose their server at about the same time.
type worries struct {
	sync.Mutex
	quietUntil machine.Ms
	others     int
}

func (w *worries) warn(of string, trouble error) {
	w.Lock()
	defer w.Unlock()
	if now() < w.quietUntil {
		w.others++
		return
	}
	var also string
	if w.others > 0 {
		also = fmt.Sprintf(", and %d other waits since the last such line", w.others)
	}
	w.quietUntil, w.others = now()+5000, 0
	slog.Warn(fmt.Sprintf("%s: still waiting%s; last error: %v", of, also, trouble))
}

// untilTold continues until the machine has a result for the caller.
func (d *driver) untilTold() machine.Output {
	for d.start(machine.Call); !d.isTold; {
		d.step(d.wait())
	}
	d.gone = nil
	return d.told
}

func (d *driver) start(event machine.Event) {
	d.l.underWay.Add(1)
	if d.closing == nil {
		d.closing = d.l.closing.Done()
	}
	d.step(machine.Input{Event: event})
}

// rest undoes what is left, if necessary after the caller has returned, and then leaves the seat. This is deferred
// after the machine's result: whoever has the seat next relies on what the caller has noted about the hold.
func (d *driver) rest() {
	if d.isFree {
		d.end()
		return
	}
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		for !d.isFree {
			d.step(d.wait())
		}
		d.end()
	}()
	select {
	case <-freed:
	case <-time.After(duration(machine.Late)):
	}
}

func (d *driver) step(in machine.Input) {
	for _, out := range d.machine.Step(now(), in) {
		switch out.Act {
		case machine.Keep, machine.Drop:
			d.own.end(out.Act == machine.Keep)
		case machine.Say:
			d.told, d.isTold = out, true
		case machine.Undo:
			d.seat.isUndone.Store(true)
		case machine.Free:
			d.isFree = true
		default:
			d.begin(out)
		}
	}
}

func (d *driver) end() {
	d.supersede()
	d.ear.hush()
	d.seat.isUndone.Store(false)
	d.seat.leave()
	if d.l.underWay.Add(-1) == 0 && d.l.isClosed() {
		select {
		case d.l.none <- struct{}{}:
		default:
		}
	}
}

// begin begins an operation; wait returns its result.
func (d *driver) begin(op machine.Output) {
	if op.Act == machine.Sleep && !d.isTold {
		d.notice.give(d.trouble)
	}
	if op.Act != machine.Await { // the one under way goes on
		d.supersede()
		d.arrives = d.asks.begin(op, d.isDirect && !d.isTold) // what follows the call is none of the caller's business
	}
	d.op = op
}

// supersede is called when nobody waits for the operation in progress any more.
func (d *driver) supersede() {
	if d.op.Act == machine.Open && d.arrives != nil {
		go giveBack(d.arrives)
	}
	d.arrives = nil
}

// wait returns the result of the operation in progress.
func (d *driver) wait() machine.Input {
	if len(d.arrives) > 0 { // it was done at once
		return d.take(<-d.arrives)
	}
	var broken <-chan struct{}
	if d.op.Act == machine.Wait && d.own.line != nil {
		broken = d.own.line.ended
	}
	timer := time.NewTimer(remaining(d.op.By))
	defer timer.Stop()
	select {
	case arrived := <-d.arrives:
		return d.take(arrived)
	case <-broken:
		return machine.Input{Event: machine.Own, Outcome: machine.Outcome{Ending: machine.Broken}}
	case <-d.gone:
		d.gone = nil
		return machine.Input{Event: machine.Cancel}
	case <-d.closing:
		d.closing = nil
		return machine.Input{Event: machine.Close}
	case <-timer.C:
		return d.take(late(d.op, d.arrives))
	}
}

func (d *driver) take(arrived arrival) machine.Input {
	if arrived.err != nil {
		d.trouble = arrived.err
	}
	d.arrives = nil
	d.ended(d.op, arrived)
	return arrived.in
}
