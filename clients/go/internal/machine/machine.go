// Package machine makes the decisions of clients/ALGORITHM.md, with the names of that page, and without I/O, clock or
// randomness.
//
// A machine gets one [Input] at a time, with the time, and returns [Output]s, of which at most one is an operation that
// takes time. The simulation runs the same machine, written in Rust; the tests replay its traces here.
package machine

import (
	"cmp"
	"math"
)

// Ms is a time in milliseconds, from an arbitrary start. The clock continues while the computer sleeps.
type Ms = int64

// The constants of clients/ALGORITHM.md.
const (
	Forever      Ms = math.MaxInt64 // a time that never comes
	Reply        Ms = 2000          // how long a reply may take
	Late         Ms = 50            // for a reply at the end of the patience, and again for what is undone at once
	Dials        Ms = 200           // the pause, more or less, before a server that was not reached is connected to again
	Patience     Ms = 3000          // how long a request that does not wait is repeated
	Looks        Ms = 1000          // how often a wait is asked again: a message that was lost costs at most this
	Acks            = 3 * Reply     // the same with ACKS: a request that is asked again begins anew to wait for acknowledgments
	Ahead        Ms = 250           // how long before the end of a wait with ACKS its request ends, at most: the reason comes in time
	FirstPause   Ms = 10
	LongestPause Ms = 500 // before it is asked again
	again        Ms = 500
	Closes       Ms = 1000 // how long what is left is undone after Close
	firstRetry   Ms = 20
	hops            = 5 // how often a request follows redirections without a pause
)

// Come returns how long a request waits for a seat that another request of its owner has. An owner does one thing at a
// time, so a request that does not wait for the lock waits only a moment. But undoing ends by itself, so the request waits
// for that until its patience ends, or for as long as it waits without a server.
func Come(isUndone bool, wait, outage Ms) Ms {
	if isUndone {
		return min(outage, cmp.Or(wait, Patience))
	}
	return cmp.Or(wait, 2*Late)
}

// Ending says how a request ended.
type Ending int

// How a request ended.
const (
	Token   Ending = iota // an integer: a token, or how many
	Nil                   // nil
	Waiting               // the request waits: a message follows
	Refused               // an error of the server
	Unsent                // nobody was there to send it to: surely not executed
	Broken                // the connection ended before the reply
	Silent                // the time for the reply has passed
)

// Outcome is the result of a request, with the token or the first word of the error.
type Outcome struct {
	Ending
	Token int64
	Code  string
}

// IsUnknown says whether the server may have executed the request, or may still do so.
func (o Outcome) IsUnknown() bool { return o.Ending == Broken || o.Ending == Silent }

var passing = map[string]bool{
	"UNBLOCKED": true, "READONLY": true, "LOADING": true, "MOVED": true, "ASK": true, "TRYAGAIN": true,
	"CLUSTERDOWN": true, "NOREPLICAS": true, "MASTERDOWN": true,
}

// Passes says whether the condition behind an error ends by itself: no server can decide for now.
func Passes(code string) bool { return passing[code] }

// Event is something that happened, for a machine to decide on.
type Event int

// What can happen.
const (
	Call      Event = iota // it begins
	Opened                 // an own connection is there
	Ended                  // a request on a shared connection ended, or opening an own one or subscribing failed
	Own                    // the request on the own connection ended; or, during a wait, that connection
	Listening              // the channel is subscribed; N: about how long a round trip takes
	Message                // the message for the latest request
	Unheard                // the subscription has ended
	Time                   // the time has come
	Taken                  // the caller has the hold
	Cancel                 // the caller went away
	Close                  // the client is closed
	Untied                 // the connection of the session ended
	Seat                   // Yes: the seat is taken; N: the depth of the hold
	Releasing              // the last level is being released
	Released               // it was, or nobody knows
	Gone                   // the reply to another request was that the hold is gone
	Extend                 // another level was granted, by a request that was sent at N
)

// Input is an event with its details.
type Input struct {
	Event
	Outcome Outcome
	Yes     bool
	N       Ms
}

// Request is a request on a shared connection.
type Request int

// The requests on a shared connection.
const (
	Acquire Request = iota
	Renew           // of Token
	CancelWait
	Info        // the token of this owner's hold
	ReleaseDown // of Token, down to Depth
)

// Tell is the result of a call.
type Tell int

// The results of a call.
const (
	Granted     Tell = iota // Token; Sent: when the request was sent that the lease counts from; Lingers
	NotAcquired             // not acquired
	IsReleased              // released
	Lost                    // the hold is gone
	Unavailable             // out of patience
	NoReplicas              // out of patience with too few replicas
	IsRefused               // another error of the server: Code
	Cancelled               // the caller went away
	Closed                  // the client is closed
)

// Act is an action of a machine. An operation continues until an input ends it; all other actions are done at once.
type Act int

// The actions of a machine.
const (
	Open     Act = iota // operation: an own connection
	AskAlone            // operation: RLOCK.ACQUIRE on the own connection
	Send                // operation: Request on a shared connection
	Await               // operation: goes on waiting for the reply to the request that was interrupted
	Listen              // operation: subscribes to the channel of the key
	Wait                // operation: waits for the message
	Sleep               // operation: waits
	TakeSeat            // operation: is the seat free?
	Keep                // the own connection is free for others
	Drop                // the own connection is closed
	Say                 // the result for the caller: Tell
	Undo                // from here on the seat is undone
	Free                // the seat is free; the end
	Doubt               // the connection of the session ended: nobody may rely on the hold until it is tied again
	Tied                // the own connection belongs to the hold
	Leave               // the seat that was taken to tie the hold is free again
	Done                // the end of a hold
)

// Output is an action with its details. An operation ends at By at the latest.
type Output struct {
	Act
	By      Ms
	Request Request
	Tell    Tell
	Token   int64
	Depth   int // of ReleaseDown, or, when a hold is tied again, of AskAlone
	Code    string
	Sent    Ms
	Lingers bool // an earlier request was never answered
	Blocks  bool
	Block   Ms // for how long it waits at the server; 0 is for ever
	Session bool
}

// left is what requests may have left behind at the server.
type left struct {
	inDoubt bool  // something was sent, and its outcome is unknown or nobody has taken it
	lingers bool  // something was never answered, and may still be executed
	token   int64 // of a grant that nobody takes
}

// After returns the time that much later; Forever remains Forever.
func After(now, takes Ms) Ms {
	if takes > 0 && now > Forever-takes { // now may be before the clock began
		return Forever
	}
	return now + takes
}
