package rlock

import (
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// asks performs the operations of the machines for one key; at most one is in progress.
type asks struct {
	l     *Locker
	key   string
	o     *options
	depth int
	own   ownConn // of a session
	heard heardAt // where late replies are heard
	next  place   // where the latest request was redirected to
	ear   *ear    // of the latest request
}

// ownConn is a dedicated connection, for one session.
type ownConn struct {
	line  *line
	isAsk bool
}

// end closes the connection, or returns it to the pool if it is free for others.
func (w *ownConn) end(isFree bool) {
	if w.line != nil && isFree {
		w.line.put()
	} else if w.line != nil {
		w.line.kill()
	}
	w.line = nil
}

// place is the target of a redirection.
type place struct {
	node  *node
	isAsk bool // only this once
}

// arrival is the result of an operation.
type arrival struct {
	in    machine.Input
	err   error
	line  *line
	heard heardAt
	next  place // where it was redirected to
	reply *redis.Cmd
	owner string // of RLOCK.AWAIT
}

// soon does work in a goroutine of its own, or at once if it must not be deferred.
func soon(isAtOnce bool, work func() arrival) <-chan arrival {
	arrives := make(chan arrival, 1)
	if isAtOnce {
		arrives <- work()
	} else {
		go func() { arrives <- work() }()
	}
	return arrives
}

// giveBack returns a connection that nobody waits for any more.
func giveBack(arrives <-chan arrival) {
	if arrived := <-arrives; arrived.line != nil {
		arrived.line.put()
	}
}

// begin begins an operation, and returns the channel of its result.
func (a *asks) begin(op machine.Output, isDirect bool) <-chan arrival {
	l, key, o, depth, next := a.l, a.key, a.o, a.depth, a.next
	switch op.Act {
	case machine.Open:
		a.own, a.next = ownConn{isAsk: next.isAsk}, place{}
		return soon(false, func() arrival { return l.open(key, next.node, op.By) })
	case machine.Listen:
		if a.next = (place{}); a.own.line != nil {
			next = place{a.own.line.node, a.own.isAsk}
		}
		if heard, is := l.servers.heard(key, next); is {
			return soon(true, func() arrival { return l.servers.listening(heard) })
		}
		return soon(false, func() arrival { return l.servers.listen(key, next, op.By) })
	case machine.Wait:
		return a.ear.came
	case machine.AskAlone, machine.Send:
		var ear *ear
		if o.isLate(op) {
			a.ear.hush() // no message of an earlier request is heard any more
			a.ear = l.ear(a.heard)
			ear = a.ear
		}
		heard, own := a.heard, a.own
		if op.Act == machine.Send {
			return soon(isDirect, func() arrival { return l.send(key, o, depth, op, heard, ear) })
		}
		if op.Depth > 0 {
			depth = op.Depth
		}
		return soon(false, func() arrival { return l.askAlone(own, o.acquire(key, depth, op, ear)) })
	}
	return nil
}

// ended records the result of an operation.
func (a *asks) ended(op machine.Output, arrived arrival) {
	switch op.Act {
	case machine.Open:
		a.own.line = arrived.line
	case machine.Listen:
		a.heard = arrived.heard
	case machine.AskAlone, machine.Send:
		a.next = arrived.next
	}
}

// ends waits for the result of an operation.
func ends(op machine.Output, arrives <-chan arrival) arrival {
	select {
	case arrived := <-arrives:
		return arrived
	case <-time.After(remaining(op.By)): // not later: it may be just before the deadline of a hold
		return late(op, arrives)
	}
}

// late returns the result of an operation whose time has passed. A process that slept first reads what its sockets have
// received.
func late(op machine.Output, arrives <-chan arrival) arrival {
	select {
	case arrived := <-arrives:
		return arrived
	case <-time.After(min(duration(machine.Late), max(0, -remaining(op.By)-time.Millisecond))):
	}
	timedOut := arrival{in: machine.Input{Event: machine.Ended, Outcome: machine.Outcome{Ending: machine.Silent}}, err: errSilent}
	switch op.Act {
	case machine.AskAlone:
		timedOut.in.Event = machine.Own
	case machine.Open, machine.Listen:
		timedOut.in.Outcome.Ending = machine.Unsent
		if op.Act == machine.Open {
			go giveBack(arrives)
		}
	case machine.Wait, machine.Sleep:
		return arrival{in: machine.Input{Event: machine.Time}}
	}
	return timedOut
}
