package machine

// Kept is what a grant or a renewal has fixed about a hold.
type Kept struct {
	Token   int64
	Lease   Ms
	Sent    Ms // when the request was sent that the lease counts from
	Margin  Ms // how long before its deadline the loss is reported, because that takes time
	HasAcks bool
	Renews  bool
}

// Hold is a hold from its grant to its end, shared by all levels: renewed, lost or released. It begins with [Call].
type Hold struct {
	kept        Kept
	at          at
	deadline    Ms
	renewsAt    Ms
	pause       Ms
	sent        Ms
	depth       int
	isTying     bool // it has the seat, to be tied to a new connection
	isReleasing bool
	isUntied    bool
	isUnsure    bool
	out         []Output
}

// NewHold returns a hold that has just been granted.
func NewHold(kept Kept) *Hold {
	h := &Hold{kept: kept, renewsAt: Forever, depth: 1}
	h.renewed(kept.Sent)
	return h
}

// Deadline is the time until which the hold is certain.
func (h *Hold) Deadline() Ms { return h.deadline }

// IsUnsure says whether a request to tie the hold may still be executed, or has tied another hold. If so, the seat is
// not free after [Leave] until that is undone.
func (h *Hold) IsUnsure() bool { return h.isUnsure }

// IsTying says whether the hold is being tied to a new connection.
func (h *Hold) IsTying() bool { return h.isTying }

func (h *Hold) emit(outputs ...Output) { h.out = append(h.out, outputs...) }

// renewed extends the deadline after a renewal. The new lease counts from when the server read the request, which was
// later than sent.
func (h *Hold) renewed(sent Ms) {
	h.deadline, h.pause = max(h.deadline, After(sent, h.kept.Lease)), firstRetry
	if h.kept.Renews {
		h.renewsAt = After(sent, h.kept.Lease/3)
	}
}

// Step handles an input and returns the outputs, which are valid until the next call.
func (h *Hold) Step(now Ms, in Input) []Output {
	h.out = h.out[:0]
	switch at, event := h.at, in.Event; {
	case at == done:
	case event == Released:
		h.at = done
		h.emit(Output{Act: Done})
	case event == Gone:
		h.leave()
		h.lose()
	case event == Releasing:
		h.isReleasing = true
	case event == Extend:
		h.deadline = max(h.deadline, After(in.N, h.kept.Lease))
	case event == Close:
		h.kept.Renews, h.renewsAt, h.isUntied = false, Forever, false
		h.leave()
		h.idle(now)
	case event == Untied:
		h.emit(Output{Act: Doubt})
		if h.isUntied = true; at == idle {
			h.renewsAt = now
			h.idle(now)
		}
	case at == start && event == Call, at == idle && event == Time:
		h.idle(now)
	case at == listening && event == Listening:
		h.ask(now)
	case (at == renewing || at == tying) && (event == Ended || event == Own) && in.Outcome.Ending == Waiting:
		h.at = waiting
		h.emit(Output{Act: Wait, By: h.by(h.sent, Acks)})
	case at == seating && event == Seat && in.Yes:
		h.at, h.depth, h.isTying = opening, int(in.N), true
		h.emit(Output{Act: Open, By: min(After(now, Reply), h.limit())})
	case at == opening && event == Opened:
		h.begin(now)
	case at == opening && event == Ended, at == listening && event == Ended && h.isTying:
		h.failsToTie(now)
	case at == tying && event == Own, at == waiting && event == Message && h.isTying:
		h.tied(now, in.Outcome)
	case at == waiting && (event == Unheard || event == Time) && h.isTying:
		h.tied(now, Outcome{Ending: Silent})
	case at == renewing && event == Ended, at == waiting && event == Message:
		h.answered(now, in.Outcome)
	case at == waiting && event == Unheard:
		h.begin(now)
	case at == listening && event == Ended, at == seating && event == Seat, at == waiting && event == Time:
		h.later(now)
	}
	return h.out
}

// leave gives up the seat that the hold has while it is being tied to a new connection.
func (h *Hold) leave() {
	if h.isTying {
		h.isTying, h.isUnsure = false, h.at == tying || h.at == waiting
		h.emit(Output{Act: Drop}, Output{Act: Leave})
	}
}

func (h *Hold) failsToTie(now Ms) {
	h.isTying = false
	h.emit(Output{Act: Drop}, Output{Act: Leave})
	h.later(now)
}

// limit is the time at which the loss is reported.
func (h *Hold) limit() Ms { return h.deadline - h.kept.Margin }

func (h *Hold) idle(now Ms) {
	switch {
	case now >= h.limit():
		h.lose()
	case now >= h.renewsAt:
		h.begin(now)
	default:
		h.at = idle
		h.emit(Output{Act: Sleep, By: min(h.renewsAt, h.limit())})
	}
}

// begin sends the renewal, after it has subscribed to the channel for replies that wait for acknowledgments.
func (h *Hold) begin(now Ms) {
	if !h.kept.HasAcks {
		h.ask(now)
		return
	}
	h.at = listening
	h.emit(Output{Act: Listen, By: h.by(now, Reply)})
}

func (h *Hold) ask(now Ms) {
	if h.sent = now; h.isTying {
		h.at = tying
		h.emit(Output{Act: AskAlone, Session: true, Depth: h.depth, By: min(After(now, Reply), h.limit())})
		return
	}
	h.at = renewing
	h.emit(Output{Act: Send, Request: Renew, Token: h.kept.Token, By: h.by(now, Reply)})
}

// by is the time at which a slow renewal is given up: it is repeated while there is time.
func (h *Hold) by(since, takes Ms) Ms {
	return min(After(since, min(takes, max(50, h.kept.Lease/6))), h.limit())
}

func (h *Hold) answered(now Ms, outcome Outcome) {
	switch {
	case outcome.Ending == Token:
		if h.renewed(h.sent); h.isUntied && !h.isReleasing {
			h.at = seating
			h.emit(Output{Act: TakeSeat})
			return
		}
		h.idle(now)
	case outcome.Code == "NOTHELD" && h.isReleasing:
		h.renewsAt = Forever
		h.idle(now)
	case outcome.Code == "NOTHELD":
		h.lose()
	default:
		h.later(now)
	}
}

// later schedules another renewal after a moment.
func (h *Hold) later(now Ms) {
	h.renewsAt = After(now, min(h.pause, max(1, h.kept.Lease/12)))
	h.pause *= 2
	h.idle(now)
}

func (h *Hold) tied(now Ms, outcome Outcome) {
	h.isTying = false
	switch {
	case outcome.Ending == Token && outcome.Token == h.kept.Token:
		h.isUntied = false
		h.renewed(h.sent)
		h.emit(Output{Act: Leave}, Output{Act: Tied})
		h.idle(now)
	case outcome.Ending == Unsent, outcome.Ending == Refused && Passes(outcome.Code):
		h.failsToTie(now)
	default:
		// The session is lost: the server has not tied the hold, or has tied it to the connection that is closed now.
		// The request may also have tied another hold, which is then undone.
		h.isUnsure = outcome.IsUnknown() || outcome.Ending == Token
		h.emit(Output{Act: Drop}, Output{Act: Leave})
		h.lose()
	}
}

func (h *Hold) lose() {
	h.at = done
	h.emit(Output{Act: Say, Tell: Lost}, Output{Act: Done})
}
