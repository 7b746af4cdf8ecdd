package machine

// Ask is what is asked for, as far as it matters here.
type Ask struct {
	Wait        Ms // 0 is not at all, Forever is for ever
	Patience    Ms // how long it is repeated if it does not wait
	Lease       Ms
	Depth       int   // the level to reach
	Below       int64 // the token of the levels below
	AsksFirst   bool  // asks on a shared connection before it waits
	Session     bool  // ties the hold to its connection
	HasMaxQueue bool
	HasAcks     bool
}

type at int

const (
	start at = iota
	asking
	slotting
	opening
	waiting
	looking
	listening
	queueing
	placing
	turning
	confirming
	pausing
	granted
	undone
	done
	// Of what undoes.
	awaiting
	endingWait
	lastReply
	cancelling
	informing
	releasing
	// Of a hold.
	idle
	renewing
	seating
	tying
)

// Attempt is one acquisition of an owner that has its seat, until it is granted, refused or out of time, and nothing is
// left. It begins with [Call].
type Attempt struct {
	ask       Ask
	at        at
	end       Ms // of the wait
	patience  Ms // when trouble is believed
	pause     Ms
	hops      int
	asksFirst bool
	isSlotted bool // it is known whether it has a slot
	hasSlot   bool
	hasLink   bool
	sent      Ms // when the request under way was sent
	replyBy   Ms // until when the reply on the own connection may come
	misses    int
	hadDoubt  bool
	hadTicket bool
	left      left
	why       Output
	undo      undo
	out       []Output
}

// NewAttempt is one that has not begun.
func NewAttempt(ask Ask) *Attempt {
	// A connection that ends would take the levels below along.
	ask.Session = ask.Session && ask.Depth == 1
	return &Attempt{ask: ask, end: Forever, patience: Forever, pause: FirstPause, asksFirst: ask.AsksFirst && !ask.Session}
}

func (a *Attempt) emit(outputs ...Output) { a.out = append(a.out, outputs...) }

// by is when a request that may take so long is given up: at the end of the patience at the latest.
func (a *Attempt) by(now, takes Ms) Ms {
	return min(After(now, takes), max(now, After(a.patience, Late)))
}

// Step is what follows from that; the result is valid until the next one.
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
		if a.ask.Wait > 0 {
			a.end = After(now, a.ask.Wait)
			a.patience = a.end
		} else {
			a.patience = After(now, a.ask.Patience)
		}
		a.next(now)
	case at == slotting && event == Slot:
		a.isSlotted, a.hasSlot = true, in.Yes
		a.next(now)
	case at == opening && event == Opened:
		a.askAlone(now, in.N)
	case at == opening && event == Ended:
		a.failed(now, in.Outcome)
	case at == asking && event == Ended:
		a.asked(now, in.Outcome)
	case (at == waiting || at == looking) && event == Own:
		a.waited(now, in.Outcome)
	case at == looking && event == Place:
		a.looked(now, in)
	case at == listening && (event == Listening || event == Ended):
		a.hadTicket, a.left.hasTicket = a.left.hasTicket, true
		a.send(now, Output{Request: Queue}, queueing)
	case at == queueing && event == Ended:
		a.queued(now, in.Outcome)
	case at == placing && event == Ended:
		switch in.Outcome.Ending {
		case Nil:
			a.left.hasTicket = false
			a.finish(now, Output{Tell: NotAcquired})
		case Token:
			a.awaitTurn(now)
		default:
			a.failed(now, in.Outcome)
		}
	case at == turning && (event == Turn || event == Time):
		a.next(now)
	case at == confirming && event == Ended:
		a.confirmed(now, in.Outcome)
	case at == pausing && event == Time:
		if now < a.patience {
			a.next(now)
		} else {
			a.finish(now, a.why)
		}
	} // what else comes belongs to an operation that was interrupted
}

// next asks in the best way there is.
func (a *Attempt) next(now Ms) {
	switch {
	case a.ask.Wait == 0 && !a.ask.Session || a.asksFirst:
		a.send(now, Output{Request: Acquire}, asking)
	case a.left.hasTicket && now >= a.end:
		a.finish(now, Output{Tell: NotAcquired})
	case !a.isSlotted && a.ask.Wait > 0:
		a.at = slotting
		a.emit(Output{Act: AskSlot})
	case a.isSlotted && !a.hasSlot:
		a.at = listening
		a.emit(Output{Act: Listen, By: a.by(now, Reply)})
	default:
		a.open(now)
	}
}

func (a *Attempt) send(now Ms, what Output, at at) {
	a.at = at
	if what.Request == Acquire || what.Request == Queue {
		a.hadDoubt, a.left.inDoubt = a.left.inDoubt, true
		a.sent = now
	}
	takes := replyTime(a.ask.HasAcks)
	if what.Request == AskPlace {
		takes = Reply
	}
	what.Act, what.By = Send, a.by(now, takes)
	a.emit(what)
}

func (a *Attempt) open(now Ms) {
	a.at = opening
	a.emit(Output{Act: Open, By: a.by(now, Reply)})
}

// asked is told of the reply on a shared connection, without waiting.
func (a *Attempt) asked(now Ms, outcome Outcome) {
	switch {
	case outcome.Ending == Token:
		a.granted(now, outcome.Token)
	case outcome.Ending == Nil && a.ask.Wait > 0:
		a.asksFirst, a.left.inDoubt = false, false
		a.next(now)
	case outcome.Ending == Nil:
		a.left.inDoubt = false
		a.finish(now, Output{Tell: NotAcquired})
	default:
		a.failed(now, outcome)
	}
}

// askAlone asks on its own connection: a blocked wait, or a session.
func (a *Attempt) askAlone(now, rtt Ms) {
	a.at, a.hasLink, a.sent, a.misses = waiting, true, now, 0
	a.hadDoubt, a.left.inDoubt = a.left.inDoubt, true
	ask := Output{Act: AskAlone, Session: a.ask.Session}
	// A ticket that was granted is moved to its own connection.
	if ask.Blocks = a.ask.Wait > 0 && a.hasSlot; ask.Blocks {
		if a.end != Forever {
			ask.Block = max(1, a.end-now-rtt) // the reply comes in time, however far the server is
		}
		a.replyBy = After(a.end, Late)
	} else {
		a.replyBy = a.by(now, replyTime(a.ask.HasAcks))
	}
	ask.By = a.looksAt(now)
	a.emit(ask)
}

func (a *Attempt) looksAt(now Ms) Ms { return min(a.replyBy, After(now, Looks)) }

func (a *Attempt) waited(now Ms, outcome Outcome) {
	switch {
	case outcome.Ending == Token:
		a.granted(now, outcome.Token)
		return
	case outcome.Ending == Nil:
		a.left.inDoubt = false
		a.finish(now, Output{Tell: NotAcquired})
		return
	case outcome.Ending == Silent && now < a.replyBy:
		a.at = looking
		a.emit(Output{Act: Look, By: a.by(now, Reply)})
		return
	case outcome.Ending == Refused:
		a.emit(Output{Act: Keep})
	default:
		a.emit(Output{Act: Drop})
	}
	a.hasLink = false
	a.failed(now, outcome)
}

// looked is told of the place. A reply may be on its way, so the place is missed twice before it is believed.
func (a *Attempt) looked(now Ms, in Input) {
	switch {
	case in.IsUnknown: // no server decides at the moment
	case in.Yes:
		a.misses = 0
	default:
		a.misses++
	}
	if a.misses == 2 {
		a.hasLink = false
		a.emit(Output{Act: Drop})
		a.failed(now, Outcome{Ending: Silent})
		return
	}
	a.at = waiting
	a.emit(Output{Act: Read, By: a.looksAt(now)})
}

func (a *Attempt) queued(now Ms, outcome Outcome) {
	switch outcome.Ending {
	case Token:
		a.left.hasTicket = false
		if a.ask.Session {
			a.left.token = outcome.Token
			a.open(now)
			return
		}
		a.granted(now, outcome.Token)
	case Nil:
		a.left.inDoubt = false
		if a.ask.HasMaxQueue && !a.hadTicket { // the queue may have been full
			a.send(now, Output{Request: AskPlace}, placing)
			return
		}
		a.awaitTurn(now)
	default:
		if !outcome.IsUnknown() {
			a.left.hasTicket = a.hadTicket
		}
		a.failed(now, outcome)
	}
}

func (a *Attempt) awaitTurn(now Ms) {
	a.at, a.pause = turning, FirstPause
	a.emit(Output{Act: AwaitTurn, By: max(now, min(a.end, After(now, asks)))})
}

func (a *Attempt) granted(now Ms, token int64) {
	a.left.token = token
	if now-a.sent > a.ask.Lease/3 { // the grant may be as old as the request
		a.hadDoubt = true
		a.send(now, Output{Request: Renew, Token: token}, confirming)
		a.sent = now
		return
	}
	if a.ask.Below != 0 && a.ask.Below != token {
		a.ask.Depth = 1 // the levels below are gone, and this is another hold
		a.finish(now, Output{Tell: Lost})
		return
	}
	if a.hasLink && !a.ask.Session {
		a.hasLink = false
		a.emit(Output{Act: Keep})
	}
	a.at = granted
	a.emit(Output{Act: Say, Tell: Granted, Token: token, Sent: a.sent, Lingers: a.left.lingers})
}

func (a *Attempt) confirmed(now Ms, outcome Outcome) {
	if outcome.Ending == Token {
		a.granted(now, a.left.token)
		return
	}
	if a.hasLink {
		a.hasLink = false
		a.emit(Output{Act: Drop})
	}
	a.left.token = 0
	if outcome.Code == "NOTHELD" && a.ask.Depth == 1 {
		a.trouble(now, Unavailable) // it has ended already: once more
		return
	}
	a.failed(now, outcome)
}

// failed is told that a request, or a connection, failed.
func (a *Attempt) failed(now Ms, outcome Outcome) {
	switch outcome.Ending {
	case Refused:
		if a.at != opening && a.at != placing {
			a.left.inDoubt = a.hadDoubt
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
	case Unsent:
		if a.at == asking || a.at == queueing {
			a.left.inDoubt = a.hadDoubt
		}
		a.trouble(now, Unavailable)
	default:
		a.left.lingers = a.left.lingers || a.at != placing
		if a.ask.Session { // one that is tied late would end with its connection: not before that
			a.pause = again
		}
		a.trouble(now, Unavailable)
	}
}

func (a *Attempt) trouble(now Ms, why Tell) {
	if now >= a.patience {
		a.finish(now, Output{Tell: why})
		return
	}
	a.at, a.why = pausing, Output{Tell: why}
	a.emit(Output{Act: Sleep, By: min(a.patience, After(now, a.pause))})
	a.pause = min(LongestPause, 2*a.pause)
}

// leave is for a caller that goes away, whatever is under way.
func (a *Attempt) leave(now Ms, why Tell) {
	switch a.at {
	case waiting, looking, asking, queueing:
		a.emit(Output{Act: Say, Tell: why})
		a.undoFrom(now)
	default:
		a.finish(now, Output{Tell: why})
	}
}

func (a *Attempt) finish(now Ms, tell Output) {
	if a.hasLink {
		// A session that nobody takes ends with its connection.
		if a.hasLink = false; a.ask.Session && a.left.token != 0 {
			a.emit(Output{Act: Drop})
		} else {
			a.emit(Output{Act: Keep})
		}
	}
	tell.Act = Say
	a.emit(tell)
	a.undoAll(now)
}

// undoAll is for when nothing of it is under way; something may be left.
func (a *Attempt) undoAll(now Ms) {
	if !a.left.inDoubt && !a.left.lingers && !a.left.hasTicket {
		a.at = done
		a.emit(Output{Act: Free})
		return
	}
	a.undoFrom(now)
}

func (a *Attempt) undoFrom(now Ms) {
	before := a.left
	before.inDoubt = a.hadDoubt
	if a.at == queueing {
		before.hasTicket = a.hadTicket
	}
	a.undo = undo{lease: a.ask.Lease, depth: a.ask.Depth, left: a.left, before: before, session: a.ask.Session}
	switch a.at {
	case waiting, looking:
		a.undo.endWait(now, &a.out)
	case asking, queueing:
		a.undo.awaitReply(now, &a.out)
	default:
		if a.hasLink {
			a.emit(Output{Act: Drop})
		}
		a.undo.begin(now, &a.out)
	}
	a.at, a.hasLink = undone, false
}
