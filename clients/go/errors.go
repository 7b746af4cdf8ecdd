package rlock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What can go wrong, for errors.Is. The text of an error is the server's.
var (
	// ErrNotAcquired: the wait is over, or nobody was to wait, and the lock is somebody else's.
	ErrNotAcquired = errors.New("rlock: not acquired")
	// ErrUnavailable: no server was reached, or none could decide, until the patience was over.
	ErrUnavailable = errors.New("rlock: the server is unavailable")
	// ErrNoReplicas: too few replicas were connected, until the patience was over. It is an ErrUnavailable too.
	ErrNoReplicas = errors.New("rlock: too few replicas")
	// ErrLost: the hold ended, or may have ended, before it was released. Others may have worked at the same time.
	ErrLost = errors.New("rlock: the hold was lost")
	// ErrReleased is why the context of a released hold ended. Releasing twice gives it too.
	ErrReleased = errors.New("rlock: the hold was released")
	// ErrDeadlock: the wait would never end. Release what you hold, then begin again.
	ErrDeadlock = errors.New("rlock: deadlock")
	// ErrTooMany: a limit of the server is reached (rlock.max-depth, -waiters, -tickets, -sessions).
	ErrTooMany = errors.New("rlock: too many")
	// ErrNoAcks: too few replicas acknowledged the grant in time, and it was taken back.
	ErrNoAcks = errors.New("rlock: not acknowledged by enough replicas")
	// ErrNoPerm: this user may not do that.
	ErrNoPerm = errors.New("rlock: no permission")
)

var codes = map[string]error{
	"DEADLOCK": ErrDeadlock, "TOOMANY": ErrTooMany, "NOACKS": ErrNoAcks, "NOPERM": ErrNoPerm, "NOTHELD": ErrLost,
	"NOREPLICAS": ErrNoReplicas,
}

// What a failover, a resharding or a start says, and what is over when it is over.
var passing = map[string]bool{
	"UNBLOCKED": true, "READONLY": true, "LOADING": true, "MOVED": true, "ASK": true, "TRYAGAIN": true,
	"CLUSTERDOWN": true, "NOREPLICAS": true, "MASTERDOWN": true,
}

// code is the first word of what the server answered; "" when it did not answer.
func code(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return ""
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return word
}

// typed wraps the server's errors that have a type of their own.
func typed(err error) error {
	if kind := codes[code(err)]; kind != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return err
}

// isPassing says whether asking again can help: the server did not answer, or is not ready.
func isPassing(err error) bool {
	if err == nil {
		return false
	}
	word := code(err)
	return word == "" || passing[word] || strings.HasPrefix(err.Error(), "ERR max number of clients")
}

// isBroken says that there was no answer: what was asked for may have been done.
func isBroken(err error) bool { return err != nil && code(err) == "" }
