package rlock

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// driver does what the machine of an attempt or of a release says, for whoever has the seat.
type driver struct {
	machine interface {
		Step(machine.Ms, machine.Input) []machine.Output
	}
	l        *Locker
	seat     *seat
	o        *options
	depth    int
	gone     <-chan struct{} // the caller went away; nil once that is no news
	closing  <-chan struct{}
	isDirect bool // the caller itself sends requests

	op      machine.Output // the operation under way
	instant arrival        // how it has ended at once
	isOver  bool           // if it has
	arrives <-chan arrival // how it has ended
	over    chan struct{}  // closed when another one begins
	own     own
	turn    turn
	hasSlot bool

	told    machine.Output
	isTold  bool
	isFree  bool
	trouble error // of the last request
	notice  *notice

	ends    machine.Ms // when the wait has passed; 0: not known
	asked   machine.Ms // when the blocked request was sent
	block   machine.Ms // for how long the server was to block it; 0: for ever
	repeats int        // how often it was asked again because the server's reply came early
}

// errSilent is why a request failed that nobody answered.
var errSilent = errors.New("no answer in time")

// mostRepeats is how often a blocked wait that ended early is asked for again. The second one knows how far the server is.
const mostRepeats = 3

// notice warns once that an acquisition finds no server.
type notice struct {
	of string
	at machine.Ms // 0: it was given
}

func (n *notice) give(trouble error) {
	if n != nil && n.at > 0 && now() >= n.at {
		n.at = 0
		slog.Warn(fmt.Sprintf("%s: still waiting; last error: %v", n.of, typed(cmp.Or(trouble, errSilent))))
	}
}

// arrival is how an operation has ended.
type arrival struct {
	in   machine.Input
	err  error
	line *line
	turn turn
}

// untilTold goes on until the machine says what comes of it.
func (d *driver) untilTold() machine.Output {
	for d.start(machine.Call); !d.isTold; {
		d.step(d.wait())
	}
	d.gone = nil
	return d.told
}

func (d *driver) start(event machine.Event) {
	d.l.underWay.Add(1)
	d.closing = d.l.closing.Done()
	d.step(machine.Input{Event: event})
}

// rest leaves nothing behind, if necessary after the caller has returned, and then leaves the seat. That is not done as
// soon as the machine says so: whoever has the seat next relies on what the caller has noted about the hold.
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
		case machine.Keep:
			d.own.keep(cap(d.l.slots))
		case machine.Drop:
			d.own.drop()
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
	d.turn.hush()
	if d.hasSlot {
		<-d.l.slots
	}
	d.seat.isUndone.Store(false)
	d.seat.leave()
	if d.l.underWay.Add(-1) == 0 && d.l.isClosed() {
		select {
		case d.l.none <- struct{}{}:
		default:
		}
	}
}

// begin begins an operation; wait says how it ends.
func (d *driver) begin(op machine.Output) {
	if d.op = op; op.Act != machine.Await {
		d.supersede()
	}
	key := d.seat.id.key
	switch op.Act {
	case machine.AskSlot:
		select {
		case d.l.slots <- struct{}{}:
			d.hasSlot = true
		default:
		}
		// There is no ticket for several locks: further waits have a connection as well.
		yes := d.hasSlot || d.o.group != nil
		d.instant, d.isOver = arrival{in: machine.Input{Event: machine.Slot, Yes: yes}}, true
	case machine.Send:
		if d.isDirect && !d.isTold { // what follows is none of the caller's business
			d.instant, d.isOver = d.l.send(key, d.o, d.depth, op), true
			return
		}
		d.meanwhile(func() arrival { return d.l.send(key, d.o, d.depth, op) })
	case machine.Open:
		next := d.own.next
		d.own = own{isAsk: next.isAsk}
		d.meanwhile(func() arrival { return d.l.open(key, next.node, op.By) })
	case machine.AskAlone:
		d.asked, d.block = now(), 0
		if op.Blocks && op.Block <= longestBlock {
			d.block = op.Block
		}
		d.own.ask(d.o.alone(key, d.depth, op))
	case machine.Look:
		line := d.own.line
		d.meanwhile(func() arrival { return d.l.look(key, d.o, line, op.By) })
	case machine.Sleep:
		if !d.isTold {
			d.notice.give(d.trouble)
		}
	case machine.Listen:
		before := d.turn
		d.turn = turn{}
		d.meanwhile(func() arrival { return d.l.turns.listen(key, d.o.owner, before, op.By) })
	}
}

// meanwhile does work in a goroutine of its own. What it has brought when another operation has begun is not needed.
func (d *driver) meanwhile(work func() arrival) { d.arrives, d.over = d.l.bring(work) }

// bring does work in a goroutine of its own. What it has brought when over is closed goes back.
func (l *Locker) bring(work func() arrival) (arrives chan arrival, over chan struct{}) {
	arrives, over = make(chan arrival), make(chan struct{})
	go func() {
		arrived := work()
		select {
		case arrives <- arrived:
		case <-over:
			arrived.turn.hush()
			if arrived.line != nil {
				arrived.line.put(cap(l.slots))
			}
		}
	}()
	return arrives, over
}

func (d *driver) supersede() {
	if d.over != nil {
		close(d.over)
	}
	d.arrives, d.over = nil, nil
}

// wait says how the operation under way ends.
func (d *driver) wait() machine.Input {
	if d.isOver {
		d.isOver = false
		return d.take(d.instant)
	}
	var answer <-chan *redis.Cmd
	var turn <-chan struct{}
	switch d.op.Act {
	case machine.AskAlone, machine.Read, machine.Look:
		answer = d.own.answer
	case machine.AwaitTurn:
		turn = d.turn.came
	}
	timer := time.NewTimer(remaining(d.op.By))
	defer timer.Stop()
	select {
	case arrived := <-d.arrives:
		return d.take(arrived)
	case reply := <-answer:
		return d.answered(reply)
	case <-turn:
		return machine.Input{Event: machine.Turn}
	case <-d.gone:
		d.gone = nil
		return machine.Input{Event: machine.Cancel}
	case <-d.closing:
		d.closing = nil
		return machine.Input{Event: machine.Close}
	case <-timer.C:
	}
	// A process that slept reads first what lies in its sockets.
	select {
	case arrived := <-d.arrives:
		return d.take(arrived)
	case reply := <-answer:
		return d.answered(reply)
	case <-time.After(overdue(d.op.By)):
		return d.timedOut()
	}
}

func (d *driver) timedOut() machine.Input {
	switch d.op.Act { // a blocked wait is silent for long, and not because anything is wrong
	case machine.Send, machine.Await, machine.Open, machine.Listen:
		d.trouble = errSilent
	}
	return timedOut(d.op.Act)
}

// overdue is how long a process that slept until after that time still reads. Nobody else does.
func overdue(by machine.Ms) time.Duration {
	return min(duration(machine.Late), max(0, -remaining(by)-time.Millisecond))
}

// timedOut is that an operation took too long.
func timedOut(act machine.Act) machine.Input {
	silent := machine.Outcome{Ending: machine.Silent}
	switch act {
	case machine.Send, machine.Await:
		return machine.Input{Event: machine.Ended, Outcome: silent}
	case machine.AskAlone, machine.Read:
		return machine.Input{Event: machine.Own, Outcome: silent}
	case machine.Open, machine.Listen:
		return machine.Input{Event: machine.Ended, Outcome: machine.Outcome{Ending: machine.Unsent}}
	case machine.Look:
		return machine.Input{Event: machine.Place, IsUnknown: true}
	}
	return machine.Input{Event: machine.Time}
}

func (d *driver) take(arrived arrival) machine.Input {
	d.supersede()
	if arrived.err != nil {
		d.trouble = arrived.err
	}
	switch d.op.Act {
	case machine.Open:
		d.own.line = arrived.line
	case machine.Listen:
		d.turn = arrived.turn
	}
	return arrived.in
}

func (d *driver) answered(reply *redis.Cmd) machine.Input {
	outcome, err := d.l.heard(&d.own, reply)
	if err != nil {
		d.trouble = err
	}
	if outcome.Ending == machine.Nil && d.isEarly() {
		// To ask again without a pause is what a redirection is for.
		outcome = machine.Outcome{Ending: machine.Refused, Code: "MOVED"}
	}
	return machine.Input{Event: machine.Own, Outcome: outcome}
}

// isEarly says whether the server has blocked the wait for as long as it was asked to, and yet the wait has not passed: a
// server that was paused seemed to be far away, so that its reply was expected to take longer. Now it is known how long.
func (d *driver) isEarly() bool {
	took, left := now()-d.asked, d.ends-now()
	if d.isTold || d.block == 0 || took < d.block || left <= 1 || d.repeats == mostRepeats {
		return false
	}
	d.repeats++
	d.l.servers.replied(took - d.block)
	return true
}
