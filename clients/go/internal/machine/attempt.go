package machine

// Ask is what an attempt needs to know about the request.
type Ask struct {
	Wait     Ms // 0 is not at all, Forever is for ever
	Patience Ms // how long it is repeated if it does not wait
	Outage   Ms // after how long without a server it gives up
	Lease    Ms
	Depth    int   // the level to reach
	Below    int64 // the token of the levels below
	Hears    bool  // the channel of its key is subscribed
	Session  bool  // ties the hold to its connection
	HasAcks  bool  // a grant counts when replicas have acknowledged it
}

type at int

const (
	start at = iota
	opening
	listening
	asking  // a request is under way
	waiting // the server said that it waits
	pausing
	granted
	undone
	done
	// The states of what undoes.
	awaiting
	cancelling
	informing
	releasing
	// The states of a hold.
	idle
	renewing
	seating
	tying
)

// Attempt is one acquisition of an owner that has its seat. It lasts until the request is granted, refused or out of
// time, and nothing is left to undo. It begins with [Call].
type Attempt struct {
	ask       Ask
	at        at
	patience  Ms // when trouble is believed; if it waits, its wait ends then
	served    Ms // when a server last decided a request or let it wait; at first, when it began
	pause     Ms
	hops      int
	asksFirst bool // the next request is a plain one, which is answered at once
	hasLink   bool // a session has its connection
	rtt       Ms
	sent      Ms // when the latest request was sent
	block     Ms // for how long it waits at the server
	hadDoubt  bool
	isBusy    bool // nothing has gone wrong since the server said that the lock is not free
	left      left
	why       Output
	undo      undo
	out       []Output
}

// NewAttempt returns an attempt that has not begun.
func NewAttempt(ask Ask) *Attempt {
	// If this connection ended, the levels below would end too, so only the first level has a session.
	ask.Session = ask.Session && ask.Depth == 1
	return &Attempt{ask: ask, patience: Forever, pause: FirstPause, asksFirst: !ask.HasAcks && (ask.Wait == 0 || !ask.Hears)}
}

func (a *Attempt) emit(outputs ...Output) { a.out = append(a.out, outputs...) }

// by is when an operation that may take this long is given up: at the end of the patience at the latest.
func (a *Attempt) by(now, takes Ms) Ms {
	return min(After(now, takes), max(now, After(a.patience, Late)))
}

// ends is when trouble ends it: its patience is over, or no server was there for too long.
func (a *Attempt) ends() Ms { return min(a.patience, After(a.served, a.ask.Outage)) }

// blocks is how long the next request waits at the server: short enough that the message comes in time, even from a
// distant server. With ACKS, the wait ends earlier, because its message says whether replicas were the reason; the next
// request then waits for the remaining time.
func (a *Attempt) blocks(now Ms) Ms {
	left := max(0, a.patience-now-a.rtt)
	if ahead := min(Ahead, a.ask.Wait/8); a.ask.HasAcks && ahead < left {
		left -= ahead
	}
	return max(1, left)
}

// Step handles an input and returns the outputs, which are valid until the next call.
func (a *Attempt) Step(now Ms, in Input) []Output {
	a.out = a.out[:0]
	switch {
	case a.at == undone:
		a.undo.step(now, in, &a.out)
	case a.at == done:
	case a.at == granted && in.Event == Taken:
		a.at = done
		a.emit(Output{Act: Free})
	case a.at == granted && (in.Event == Cancel || in.Event == Close):
		a.undoAll(now)
	case in.Event == Cancel:
		a.leave(now, Cancelled)
	case in.Event == Close:
		a.leave(now, Closed)
		a.undo.step(now, in, &a.out)
	default:
		a.goOn(now, in)
	}
	return a.out
}

func (a *Attempt) goOn(now Ms, in Input) {
	switch at, event := a.at, in.Event; {
	case at == start && event == Call:
		a.served, a.patience = now, After(now, a.ask.Patience)
		if a.ask.Wait > 0 {
			a.patience = After(now, a.ask.Wait)
		}
		a.next(now)
	case at == opening && event == Opened:
		a.hasLink = true
		a.next(now)
	case at == listening && event == Listening:
		a.rtt = in.N
		ask := Output{Blocks: a.ask.Wait > 0}
		if ask.Blocks && a.patience != Forever {
			ask.Block = a.blocks(now)
		}
		a.send(now, ask)
	case at == asking && (event == Ended || event == Own):
		a.asked(now, in.Outcome)
	case (at == opening || at == listening) && event == Ended:
		a.failed(now, in.Outcome)
	case at == waiting:
		a.served = now
		a.waited(now, in)
	case at == pausing && event == Time && now < a.ends():
		a.next(now)
	case at == pausing && event == Time:
		a.finish(now, a.why)
	} // what else comes belongs to an operation that was interrupted
}

// next sends the request in the best available way.
func (a *Attempt) next(now Ms) {
	switch {
	case a.ask.Session && !a.hasLink:
		a.at = opening
		a.emit(Output{Act: Open, By: a.by(now, Reply)})
	case a.asksFirst:
		a.send(now, Output{})
	default:
		a.at = listening
		a.emit(Output{Act: Listen, By: a.by(now, Reply)})
	}
}

func (a *Attempt) send(now Ms, ask Output) {
	a.at, a.sent, a.block = asking, now, ask.Block
	a.hadDoubt, a.left.inDoubt = a.left.inDoubt, true
	ask.Act, ask.Request, ask.By = Send, Acquire, a.by(now, Reply)
	if ask.Session = a.ask.Session; ask.Session {
		ask.Act = AskAlone
	}
	a.emit(ask)
}

func (a *Attempt) asked(now Ms, outcome Outcome) {
	if outcome.Ending == Token || outcome.Ending == Nil {
		a.served = now
	}
	switch outcome.Ending {
	case Token:
		a.granted(now, outcome.Token)
	case Nil:
		a.left.inDoubt, a.isBusy = false, true
		if a.ask.Wait > 0 && a.asksFirst {
			a.asksFirst = false
			a.next(now)
			return
		}
		a.finish(now, Output{Tell: NotAcquired})
	// An earlier request of this owner no longer waits: this one has taken its place. But a restarted server keeps a grant
	// without knowing that it was pending.
	case Waiting:
		a.at, a.pause, a.hadDoubt = waiting, FirstPause, a.hadDoubt && a.ask.HasAcks
		looks := Looks
		if a.ask.HasAcks {
			looks = Acks
		}
		a.emit(Output{Act: Wait, By: a.by(now, looks)})
	default:
		if a.hasLink {
			a.hasLink = false
			if outcome.IsUnknown() {
				a.emit(Output{Act: Drop})
			} else {
				a.emit(Output{Act: Keep})
			}
		}
		a.failed(now, outcome)
	}
}

func (a *Attempt) waited(now Ms, in Input) {
	switch in.Event {
	case Message:
		if in.Outcome.Ending != Nil {
			a.asked(now, in.Outcome)
			return
		}
		a.left.inDoubt = false
		a.rtt = min(a.rtt, max(0, now-a.sent-a.block))     // the server is nearer than it was during a pause
		if a.ask.Wait > 0 && a.patience-now > a.rtt+Late { // the server may have ended it early
			a.next(now)
			return
		}
		a.finish(now, Output{Tell: NotAcquired})
	case Unheard:
		a.next(now)
	case Time:
		switch {
		case now < a.patience:
			a.next(now)
		case a.ask.Wait > 0:
			a.finish(now, Output{Tell: NotAcquired})
		default:
			a.finish(now, Output{Tell: Unavailable})
		}
	case Own: // the wait ended with the session's connection
		a.hasLink = false
		a.emit(Output{Act: Drop})
		a.trouble(now, Unavailable)
	}
}

func (a *Attempt) granted(now Ms, token int64) {
	a.left.token = token
	if a.ask.Below != 0 && token != a.ask.Below {
		a.ask.Depth = 1 // the levels below are gone, and this is another hold
		a.finish(now, Output{Tell: Lost})
		return
	}
	if now-a.sent > a.ask.Lease/3 {
		// The grant may be as old as the request. If it has ended already, this is another one.
		a.asksFirst, a.left.token = !a.ask.HasAcks, 0
		a.next(now)
		return
	}
	a.at = granted
	a.emit(Output{Act: Say, Tell: Granted, Token: token, Sent: a.sent, Lingers: a.left.lingers})
}

// failed handles the failure of a request, a subscription or a connection.
func (a *Attempt) failed(now Ms, outcome Outcome) {
	wasAsked, isBusy := a.at == asking || a.at == waiting, a.isBusy && a.at == listening
	a.isBusy = false
	switch {
	case outcome.Ending == Refused:
		if wasAsked {
			// The server may have granted it before it stopped to decide.
			isPending := a.at == waiting && a.ask.HasAcks && Passes(outcome.Code)
			a.left.inDoubt = a.hadDoubt || isPending
		}
		switch code := outcome.Code; {
		case code == "NOTHELD":
			a.finish(now, Output{Tell: Lost})
		case (code == "MOVED" || code == "ASK") && a.hops < hops && now < a.patience:
			a.hops++
			a.next(now)
		case code == "NOREPLICAS":
			a.trouble(now, NoReplicas)
		case Passes(code):
			a.trouble(now, Unavailable)
		default:
			a.finish(now, Output{Tell: IsRefused, Code: code})
		}
	case isBusy && now >= a.patience: // there was no time left to wait in
		a.finish(now, Output{Tell: NotAcquired})
	case outcome.Ending == Unsent:
		if wasAsked {
			a.left.inDoubt = a.hadDoubt
		}
		a.trouble(now, Unavailable)
	default:
		a.left.lingers = a.left.lingers || wasAsked
		if wasAsked && a.ask.Session { // it may still be tied to this connection, and end with it: a longer pause
			a.pause = again
		}
		a.trouble(now, Unavailable)
	}
}

func (a *Attempt) trouble(now Ms, why Tell) {
	ends := a.ends()
	if now >= ends {
		a.finish(now, Output{Tell: why})
		return
	}
	a.at, a.why = pausing, Output{Tell: why}
	a.emit(Output{Act: Sleep, By: min(ends, After(now, a.pause))})
	a.pause = min(LongestPause, 2*a.pause)
}

// leave ends the attempt for a caller that goes away, whatever is in progress.
func (a *Attempt) leave(now Ms, why Tell) {
	if a.at != asking {
		a.finish(now, Output{Tell: why})
		return
	}
	a.emit(Output{Act: Say, Tell: why})
	if a.ask.Session {
		a.left.lingers = true
		a.undoAll(now)
		return
	}
	a.undoes()
	a.undo.before.inDoubt = a.hadDoubt
	a.undo.awaitReply(now, &a.out)
}

func (a *Attempt) finish(now Ms, tell Output) {
	if a.hasLink && !a.left.inDoubt {
		a.hasLink = false
		a.emit(Output{Act: Keep})
	}
	tell.Act = Say
	a.emit(tell)
	a.undoAll(now)
}

// undoAll runs when no operation is in progress; it undoes what may be left.
func (a *Attempt) undoAll(now Ms) {
	if !a.left.inDoubt && !a.left.lingers {
		a.at = done
		a.emit(Output{Act: Free})
		return
	}
	a.undoes()
	a.undo.begin(now, a.hasLink, &a.out)
	a.hasLink = false
}

func (a *Attempt) undoes() {
	a.at = undone
	a.undo = undo{lease: a.ask.Lease, depth: a.ask.Depth, left: a.left, before: a.left}
}
