package machine

// Kept is what is held.
type Kept struct {
	Token   int64
	Lease   Ms
	Sent    Ms // when the request was sent that the lease counts from
	Margin  Ms // how long before its deadline the loss is told, because that takes time
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
	isReleasing bool
	isUntied    bool
	isUnsure    bool
	out         []Output
}

// NewHold is one that has just been granted.
func NewHold(kept Kept) *Hold {
	h := &Hold{kept: kept, renewsAt: Forever, depth: 1}
	h.renewed(kept.Sent)
	return h
}

// Deadline is until when it is certain.
func (h *Hold) Deadline() Ms { return h.deadline }

// IsUnsure says whether a request to tie it may still be executed, or has tied another hold. On [Leave] the seat is not
// free then: that is undone first.
func (h *Hold) IsUnsure() bool { return h.isUnsure }

func (h *Hold) emit(outputs ...Output) { h.out = append(h.out, outputs...) }

// renewed is told that the server has renewed it. It counts from when it read the request, which was after that was sent.
func (h *Hold) renewed(sent Ms) {
	h.deadline, h.pause = max(h.deadline, After(sent, h.kept.Lease)), firstRetry
	if h.kept.Renews {
		h.renewsAt = After(sent, h.kept.Lease/3)
	}
}

// Step is what follows from that; the result is valid until the next one.
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
	case at == renewing && event == Ended:
		h.answered(now, in.Outcome)
	case at == seating && event == Seat && in.Yes:
		h.at, h.depth = opening, int(in.N)
		h.emit(Output{Act: Open, By: min(After(now, Reply), h.limit())})
	case at == seating && event == Seat:
		h.later(now)
	case at == opening && event == Opened:
		h.at, h.sent = tying, now
		by := min(After(now, replyTime(h.kept.HasAcks)), h.limit())
		h.emit(Output{Act: AskAlone, Session: true, Depth: h.depth, By: by})
	case at == opening && event == Ended:
		h.emit(Output{Act: Leave})
		h.later(now)
	case at == tying && event == Own:
		h.tied(now, in.Outcome)
	}
	return h.out
}

// leave gives back the seat that it has while it is being tied to a new connection.
func (h *Hold) leave() {
	if h.at == opening || h.at == tying {
		h.isUnsure = h.at == tying
		h.emit(Output{Act: Drop}, Output{Act: Leave})
	}
}

// limit is when the loss is told.
func (h *Hold) limit() Ms { return h.deadline - h.kept.Margin }

func (h *Hold) idle(now Ms) {
	switch {
	case now >= h.limit():
		h.lose()
	case now >= h.renewsAt:
		h.at, h.sent = renewing, now
		takes := min(replyTime(h.kept.HasAcks), max(50, h.kept.Lease/6))
		h.emit(Output{Act: Send, Request: Renew, Token: h.kept.Token, By: min(After(now, takes), h.limit())})
	default:
		h.at = idle
		h.emit(Output{Act: Sleep, By: min(h.renewsAt, h.limit())})
	}
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

// later renews again in a moment.
func (h *Hold) later(now Ms) {
	h.renewsAt = After(now, min(h.pause, max(1, h.kept.Lease/12)))
	h.pause *= 2
	h.idle(now)
}

func (h *Hold) tied(now Ms, outcome Outcome) {
	switch {
	case outcome.Ending == Token && outcome.Token == h.kept.Token:
		h.isUntied = false
		h.renewed(h.sent)
		h.emit(Output{Act: Leave}, Output{Act: Tied})
		h.idle(now)
	case outcome.Ending == Refused && Passes(outcome.Code):
		h.emit(Output{Act: Drop}, Output{Act: Leave})
		h.later(now)
	default:
		// Another hold ends with its connection. So does this one, if it was tied to a connection that is closed; and one
		// that the server does not tie is no session.
		h.isUnsure = outcome.IsUnknown() || outcome.Ending == Token
		h.emit(Output{Act: Drop}, Output{Act: Leave})
		h.lose()
	}
}

func (h *Hold) lose() {
	h.at = done
	h.emit(Output{Act: Say, Tell: Lost}, Output{Act: Done})
}

// Stand is how it stands with a seat: one owner at one key in one mode, at one server.
type Stand int

// How it stands with a seat.
const (
	SeatIsFree Stand = iota
	SeatIsTaken
	SeatIsUndone // what the last request left is being undone
)

// Come is until when somebody waits for a seat that is not free, and what they are then told. An owner does one thing at
// a time, so that who does not wait stays only for a moment; but what is undone passes.
func Come(now Ms, stand Stand, wait, patience Ms) (until Ms, tell Tell) {
	least, tell := soon, NotAcquired
	if stand == SeatIsUndone {
		least, tell = patience, Unavailable
	}
	if wait > 0 {
		least = wait
	}
	return After(now, least), tell
}

// Dial is what becomes of who needs a connection.
type Dial int

// What becomes of who needs a connection.
const (
	DialNow Dial = iota // for all
	Join                // somebody dials already
	Rest                // a dial failed a moment ago, or the client is closed: nobody was there
)

// Server is the dials of one server.
type Server struct {
	isDialling, isClosed bool
	restsUntil           Ms
}

// Need is for who needs a connection.
func (s *Server) Need(now Ms) Dial {
	switch {
	case s.Rests(now):
		return Rest
	case s.isDialling:
		return Join
	}
	s.isDialling = true
	return DialNow
}

// Rests says whether a dial failed a moment ago, or the client is closed.
func (s *Server) Rests(now Ms) bool { return s.isClosed || now < s.restsUntil }

// IsDialling says whether somebody dials.
func (s *Server) IsDialling() bool { return s.isDialling }

// Dialled is told that it is connected.
func (s *Server) Dialled() { s.isDialling = false }

// Failed is told that it was not reached; random is below 1000.
func (s *Server) Failed(now, random Ms) {
	s.isDialling, s.restsUntil = false, After(now, Dials*(500+random)/1000)
}

// Close ends dialling.
func (s *Server) Close() { s.isClosed = true }
