package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrArgument: an argument that is out of its range. Nothing was sent.
var ErrArgument = errors.New("rlock: invalid argument")

// The limits of the server. Its own settings may be narrower.
const (
	longestLease  = 7 * 24 * time.Hour
	sessionLease  = time.Second // the shortest one of a session
	longestOwner  = 512         // bytes
	mostPermits   = 1_000_000
	mostReplicas  = 16
	mostWaiters   = 1_000_000
	leastDuration = time.Millisecond
)

func refused(text string, words ...any) error {
	return fmt.Errorf("%w: %s", ErrArgument, fmt.Sprintf(text, words...))
}

// refuse notes the first argument that is out of its range.
func (o *options) refuse(err error) {
	if o.err == nil {
		o.err = err
	}
}

func checkCount(what string, count, least, most int, unit string) error {
	if count < least || count > most {
		return refused("%s must be from %d to %d %s, not %d", what, least, most, unit, count)
	}
	return nil
}

func checkLease(lease time.Duration) error {
	if lease < leastDuration || lease > longestLease {
		return refused("a lease must be from %v to %v, not %v", leastDuration, longestLease, lease)
	}
	return nil
}

func checkOwner(name string) error {
	if size := len(name); size < 1 || size > longestOwner {
		return refused("an owner must be 1 to %d bytes long, not %d", longestOwner, size)
	}
	return nil
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return refused("the context is nil; pass context.Background() for none")
	}
	return nil
}

// checkClient also rejects a nil pointer in the interface.
func checkClient(client redis.UniversalClient) error {
	switch client := client.(type) {
	case nil:
		return refused("the client is nil")
	case *redis.Client:
		if client == nil {
			return refused("the redis.Client is nil")
		}
	case *redis.ClusterClient:
		if client == nil {
			return refused("the redis.ClusterClient is nil")
		}
	}
	return nil
}

// check finds errors that involve several options.
func (o *options) check() error {
	switch {
	case o.err != nil:
		return o.err
	case o.session && o.lease < sessionLease:
		return refused("the lease of a session must be from %v to %v, not %v", sessionLease, longestLease, o.lease)
	case o.upgrade && !o.isNamed:
		return refused("Upgrade needs Owner: without it, each acquisition is its own owner, which holds nothing yet")
	case o.upgrade && o.mode == "READ":
		return refused("Upgrade requests the write lock; Read and Limit request the read lock")
	}
	return nil
}
