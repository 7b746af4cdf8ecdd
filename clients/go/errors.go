package rlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// What can go wrong, for errors.Is. The text of an error is the server's.
var (
	// ErrNotAcquired: another owner held the lock until the wait had passed.
	ErrNotAcquired = errors.New("rlock: not acquired")
	// ErrUnavailable: no server was reached, or none could decide, in time.
	ErrUnavailable = errors.New("rlock: the server is unavailable")
	// ErrNoReplicas: too few replicas were connected for all that time. It is also an ErrUnavailable.
	ErrNoReplicas = errors.New("rlock: too few replicas")
	// ErrLost: the hold ended, or may have ended, before it was released. Others may have worked at the same time.
	ErrLost = errors.New("rlock: the hold was lost")
	// ErrReleased is the cause with which the context of a released hold ends. Releasing twice returns it too.
	ErrReleased = errors.New("rlock: the hold was released")
	// ErrDeadlock: the wait would never end. Release what you hold, then start over.
	ErrDeadlock = errors.New("rlock: deadlock")
	// ErrTooMany: a limit of the server is reached (rlock.max-depth, rlock.max-tells, rlock.max-sessions).
	ErrTooMany = errors.New("rlock: too many")
	// ErrNoAcks: too few replicas acknowledged the grant in time, and the grant was revoked.
	ErrNoAcks = errors.New("rlock: not acknowledged by enough replicas")
	// ErrNoPerm: this user may not do that.
	ErrNoPerm = errors.New("rlock: no permission")
)

var codes = map[string]error{
	"DEADLOCK": ErrDeadlock, "TOOMANY": ErrTooMany, "NOACKS": ErrNoAcks, "NOPERM": ErrNoPerm, "NOTHELD": ErrLost,
	"NOREPLICAS": ErrNoReplicas,
}

// code is the first word of the server's error, or of what stands for one; "" if it did not answer.
func code(err error) string {
	switch {
	case err == nil:
		return ""
	case isFault(err):
		return "FAULT"
	case err != redis.Nil && errors.Is(err, redis.Nil):
		return "" // of a Sentinel, on the way to the server
	}
	var answer redis.Error
	if !errors.As(err, &answer) {
		return ""
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return word
}

// typed wraps the server's errors that have a type of their own.
func typed(err error) error {
	if isFault(err) {
		return err
	}
	if kind := codes[code(err)]; kind != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	if err != nil && code(err) == "ERR" && isUnknown(err.Error()) {
		return fmt.Errorf("rlock: the server has not loaded the RLOCK module: %w", err)
	}
	if err != nil && strings.HasPrefix(err.Error(), "ERR syntax error at 'TELL'") {
		return fmt.Errorf("rlock: the server's RLOCK module is too old for this package, it does not know TELL: %w", err)
	}
	return err
}

// unavailable says that no server decided about the key, and why.
func unavailable(key string, why error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, key, why)
}

// ended is the cause with which ctx ended, with the last error of a request if there was one: it may explain why the
// lock took so long.
func ended(ctx context.Context, trouble error) error {
	if trouble == nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w; last error: %w", context.Cause(ctx), typed(trouble))
}

func isUnknown(text string) bool {
	return strings.HasPrefix(text, "ERR unknown command") && strings.Contains(text, "RLOCK.")
}

// isPassing says whether a retry can help: the server did not answer, or is not ready.
func isPassing(err error) bool {
	if err == nil {
		return false
	}
	word := code(err)
	text := err.Error() // an observer's, of a server that has just become a replica
	return word == "" || machine.Passes(word) || strings.HasPrefix(text, "ERR max number of clients") || strings.HasSuffix(text, "on a replica: ask the primary, or leave out BLOCK")
}

// isBroken says that there was no answer: the request may have been executed.
func isBroken(err error) bool { return err != nil && code(err) == "" }

// isUnsent says that there was no connection to send the request on.
func isUnsent(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed)
}
