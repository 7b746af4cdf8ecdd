package machine

// undo undoes whatever was sent, until the server has confirmed that, or the lease has expired.
type undo struct {
	lease  Ms
	depth  int
	left   left
	before left // the request that was interrupted
	at     at
	until  Ms
	pause  Ms
}

func (u *undo) starts(now Ms, out *[]Output) {
	u.until, u.pause = After(After(now, u.lease), Reply), Late
	*out = append(*out, Output{Act: Undo})
}

// begin starts undoing when no operation is in progress. A session that nobody uses ends with its connection.
func (u *undo) begin(now Ms, hasLink bool, out *[]Output) {
	if u.starts(now, out); hasLink {
		*out = append(*out, Output{Act: Drop})
	}
	u.round(now, out)
}

// awaitReply starts undoing while a request on a shared connection is in progress, and waits for its reply for a
// moment.
func (u *undo) awaitReply(now Ms, out *[]Output) {
	u.starts(now, out)
	u.at = awaiting
	*out = append(*out, Output{Act: Await, By: After(now, Reply/4)})
}

func (u *undo) step(now Ms, in Input, out *[]Output) {
	switch at, event := u.at, in.Event; {
	case at == done:
	case event == Close:
		u.until = min(u.until, After(now, Closes))
	case at == awaiting && event == Ended:
		u.replied(in.Outcome)
		u.round(now, out)
	case (at == cancelling || at == informing || at == releasing) && event == Ended:
		u.did(now, in.Outcome, out)
	case at == pausing && event == Time:
		u.round(now, out)
	}
}

// replied handles the reply to a request whose caller has given up.
func (u *undo) replied(outcome Outcome) {
	switch outcome.Ending {
	case Token:
		u.left.token = outcome.Token
	case Nil:
		u.left.inDoubt = false
	case Waiting:
	case Refused, Unsent:
		u.left = u.before
	default:
		u.left.lingers = true
	}
}

func (u *undo) round(now Ms, out *[]Output) {
	switch {
	case now >= u.until:
		u.free(out)
	case (u.left.inDoubt || u.left.lingers) && u.left.token == 0:
		// A replica would answer a query as well, but it refuses this command.
		u.send(now, cancelling, Output{Request: CancelWait}, out)
	default:
		u.letGo(now, out)
	}
}

// letGo releases what may have been granted, by its token: if this request arrives late, it ends no later hold.
func (u *undo) letGo(now Ms, out *[]Output) {
	switch {
	case !u.left.inDoubt && !u.left.lingers:
		u.done(now, out)
	case u.left.token != 0:
		u.send(now, releasing, Output{Request: ReleaseDown, Token: u.left.token, Depth: u.depth - 1}, out)
	default:
		u.send(now, informing, Output{Request: Info}, out)
	}
}

func (u *undo) send(now Ms, at at, what Output, out *[]Output) {
	u.at, what.Act, what.By = at, Send, After(now, Reply)
	*out = append(*out, what)
}

func (u *undo) did(now Ms, outcome Outcome, out *[]Output) {
	switch ok := outcome.Ending == Token || outcome.Ending == Nil; {
	case ok && u.at == cancelling:
		u.letGo(now, out)
	case outcome.Ending == Token && u.at == informing:
		u.left.token = outcome.Token
		u.letGo(now, out)
	case ok, u.at == releasing && outcome.Code == "NOTHELD":
		u.done(now, out)
	case outcome.Ending == Refused && !Passes(outcome.Code):
		u.free(out)
	default:
		// A cancellation that arrives late would end a later wait.
		u.left.lingers = u.left.lingers || u.at == cancelling && outcome.IsUnknown()
		u.rest(now, u.pause, out)
		u.pause = min(2*u.pause, 1000)
	}
}

// done checks once more if a request was never answered: the server may execute only now what it had not read yet.
func (u *undo) done(now Ms, out *[]Output) {
	if !u.left.lingers {
		u.free(out)
		return
	}
	u.left = left{inDoubt: true}
	u.rest(now, again, out)
}

func (u *undo) rest(now, pause Ms, out *[]Output) {
	u.at = pausing
	*out = append(*out, Output{Act: Sleep, By: After(now, pause)})
}

func (u *undo) free(out *[]Output) {
	u.at = done
	*out = append(*out, Output{Act: Free})
}

// Level is the level of a hold that is to be released.
type Level struct {
	Patience Ms // how long it is repeated
	Lease    Ms
	Depth    int
	Token    int64
	Deadline Ms   // until when the hold is certain
	Lingers  bool // a request of its attempts was never answered
}

// Release is the release of one level, by an owner that has its seat. It also undoes a level whose release has an
// unknown outcome. It begins with [Call].
type Release struct {
	level    Level
	at       at
	patience Ms
	pause    Ms
	isUnsure bool // one was never answered
	why      Output
	undo     undo
	out      []Output
}

// NewRelease returns a release that has not begun.
func NewRelease(level Level) *Release { return &Release{level: level, pause: FirstPause} }

func (r *Release) emit(output Output) { r.out = append(r.out, output) }

// Step handles an input and returns the outputs, which are valid until the next call.
func (r *Release) Step(now Ms, in Input) []Output {
	r.out = r.out[:0]
	switch at, event := r.at, in.Event; {
	case at == undone:
		r.undo.step(now, in, &r.out)
	case at == start && event == Call && now >= r.level.Deadline:
		r.finish(now, Output{Tell: Lost}, 0, false)
	case at == start && event == Call:
		r.patience = After(now, r.level.Patience)
		r.ask(now)
	case at == start && event == Cancel: // nobody waits for it
		r.fails(now, Output{Tell: Cancelled})
	case (at == asking || at == pausing) && event == Close:
		r.isUnsure = r.isUnsure || at == asking
		r.fails(now, Output{Tell: Closed})
		r.undo.step(now, in, &r.out)
	case at == asking && event == Ended:
		r.asked(now, in.Outcome)
	case at == pausing && event == Time && now < r.patience:
		r.ask(now)
	case at == pausing && event == Time:
		r.fails(now, r.why)
	}
	return r.out
}

func (r *Release) ask(now Ms) {
	r.at = asking
	by := min(After(now, Reply), After(r.patience, Late))
	r.emit(Output{Act: Send, Request: ReleaseDown, Token: r.level.Token, Depth: r.level.Depth - 1, By: by})
}

func (r *Release) asked(now Ms, outcome Outcome) {
	isGone := outcome.Ending == Refused && outcome.Code == "NOTHELD"
	switch {
	// The first request released it, and its reply was lost.
	case outcome.Ending <= Nil, isGone && r.isUnsure && r.level.Depth == 1 && now < r.level.Deadline:
		// A level below has the same token: a late release by token would end it.
		r.finish(now, Output{Tell: IsReleased}, 0, r.level.Lingers && r.level.Depth == 1 || r.isUnsure)
	case isGone:
		r.finish(now, Output{Tell: Lost}, 0, false)
	case outcome.Ending == Refused && !Passes(outcome.Code):
		r.fails(now, Output{Tell: IsRefused, Code: outcome.Code})
	default:
		r.isUnsure = r.isUnsure || outcome.IsUnknown()
		if r.why = (Output{Tell: Unavailable}); outcome.Code == "NOREPLICAS" {
			r.why.Tell = NoReplicas
		}
		if now >= r.patience {
			r.fails(now, r.why)
			return
		}
		r.at = pausing
		r.emit(Output{Act: Sleep, By: min(r.patience, After(now, r.pause))})
		r.pause = min(LongestPause, 2*r.pause)
	}
}

// fails keeps the seat until the release is known to be executed: no request of this owner may come before.
func (r *Release) fails(now Ms, why Output) {
	r.finish(now, why, r.level.Token, r.isUnsure || r.level.Lingers)
}

// finish gives the caller the result, then undoes token, which may still be held, and requests that were never
// answered.
func (r *Release) finish(now Ms, what Output, token int64, lingers bool) {
	what.Act, r.at = Say, undone
	r.emit(what)
	if token == 0 && !lingers {
		r.undo.free(&r.out)
		return
	}
	r.undo = undo{lease: r.level.Lease, depth: r.level.Depth, left: left{inDoubt: true, lingers: lingers, token: token}}
	r.undo.begin(now, false, &r.out)
}
