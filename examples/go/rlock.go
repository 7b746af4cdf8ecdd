// Package rlock is a lock for go-redis. Copy this file.
//
//	hold, err := locker.Lock(ctx, "order:42", rlock.Options{Wait: 10 * time.Second})
//	if err == nil {
//		err = errors.Join(work(hold.Context(), hold.Token), hold.Unlock())
//	}
package rlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrNotAcquired: somebody else held the lock until the wait was over.
	ErrNotAcquired = errors.New("rlock: not acquired")
	// ErrDeadlock: the wait would never end. Let go of what you hold, then begin again.
	ErrDeadlock = errors.New("rlock: deadlock")
	// ErrLost: the hold was over before it was released. Others may have worked at the same time.
	ErrLost = errors.New("rlock: the hold was lost")
)

// Options of a lock.
type Options struct {
	Mode  string        // WRITE (the default) or READ
	Wait  time.Duration // 0: ask once
	Lease time.Duration // renewed every third of it; 30 seconds if not said
	Owner string        // for one that holds several locks (each once); else each hold has its own
}

// Locker takes locks. It belongs to the whole program.
type Locker struct{ client, waits *redis.Client }

// New uses client, and connections of its own for those who wait: the client's read time-out would hang up in the
// midst of a wait. A wait is not sent again either, since its place in the queue went with the connection.
func New(client *redis.Client) *Locker {
	options := *client.Options()
	options.ReadTimeout, options.MaxRetries, options.PushNotificationProcessor = -1, -1, nil
	return &Locker{client: client, waits: redis.NewClient(&options)}
}

// Close ends the connections for waiting.
func (l *Locker) Close() error { return l.waits.Close() }

// Lock waits until the lock is held, opt.Wait is over, or ctx ends. ctx is the parent of the hold's context.
func (l *Locker) Lock(ctx context.Context, key string, opt Options) (*Hold, error) {
	hold := &Hold{
		client: l.client,
		lock:   []any{key, cmp.Or(opt.Owner, rand.Text()), cmp.Or(opt.Mode, "WRITE")},
		lease:  cmp.Or(opt.Lease, 30*time.Second),
	}
	// go-redis sends a command again when its connection breaks. DEPTH makes that harmless: it says how deep we
	// want to be, not "one more".
	words := hold.words("RLOCK.ACQUIRE", "LEASE", hold.lease.Milliseconds(), "DEPTH", 1)
	var err error
	if opt.Wait > 0 {
		// BLOCK 0 would wait for ever, so the shortest wait is 1 ms.
		hold.Token, err = l.wait(ctx, append(words, "BLOCK", max(1, opt.Wait.Milliseconds())))
	} else {
		hold.Token, err = l.client.Do(ctx, words...).Int64()
	}
	switch {
	case err == nil:
		hold.ctx, hold.cancel = context.WithCancelCause(ctx)
		go hold.keep()
		return hold, nil
	case errors.Is(err, redis.Nil):
		return nil, cmp.Or(context.Cause(ctx), fmt.Errorf("%w: %s is in use", ErrNotAcquired, key))
	case strings.HasPrefix(err.Error(), "DEADLOCK"):
		return nil, fmt.Errorf("%w: %v", ErrDeadlock, err)
	}
	// The reply is lost, the grant perhaps is not. It would end with its lease; sooner is better.
	return nil, errors.Join(err, hold.release())
}

// wait parks one connection. The end of ctx ends the wait with nil, and never a hold that was granted just before.
func (l *Locker) wait(ctx context.Context, words []any) (int64, error) {
	connection := l.waits.Conn()
	defer connection.Close()
	id, err := connection.ClientID(ctx).Result()
	if err != nil {
		return 0, err
	}
	waiting, over := context.WithCancel(context.WithoutCancel(ctx))
	defer over()
	defer context.AfterFunc(ctx, func() {
		// More than once: ctx may end just before the wait begins.
		for waiting.Err() == nil && l.client.ClientUnblock(waiting, id).Val() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	})()
	return connection.Do(waiting, words...).Int64()
}

// Hold is a lock that is held, renewed every third of its lease until Unlock.
type Hold struct {
	Token  int64 // greater than all before it: whatever is written to should refuse a smaller one
	client *redis.Client
	lock   []any
	lease  time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Context ends when the hold is lost (its cause is ErrLost), when it is released, and with its parent.
func (h *Hold) Context() context.Context { return h.ctx }

// Unlock lets go. ErrLost: the hold was over before, which is then the caller's to repair.
func (h *Hold) Unlock() error {
	if h.cancel(nil); errors.Is(context.Cause(h.ctx), ErrLost) {
		return errors.Join(fmt.Errorf("%w: %s", ErrLost, h.lock[0]), h.release())
	}
	return h.release()
}

// "Down to depth 0", sent again or too late, changes nothing and is no error.
func (h *Hold) release() error {
	return h.client.Do(context.Background(), h.words("RLOCK.RELEASE", "DEPTH", 0)...).Err()
}

func (h *Hold) keep() {
	// No renewal got through for a whole lease: then the hold is not sure any more.
	doubt := time.AfterFunc(h.lease, func() { h.cancel(ErrLost) })
	defer doubt.Stop()
	for turn := time.Tick(h.lease / 3); ; {
		select {
		case <-h.ctx.Done():
			return
		case <-turn:
		}
		sent := time.Now()
		err := h.client.Do(h.ctx, h.words("RLOCK.RENEW", "LEASE", h.lease.Milliseconds(), "TOKEN", h.Token)...).Err()
		if err == nil {
			doubt.Reset(time.Until(sent.Add(h.lease)))
		} else if strings.HasPrefix(err.Error(), "NOTHELD") {
			h.cancel(ErrLost)
		} // anything else: the next turn tries again
	}
}

func (h *Hold) words(command string, more ...any) []any {
	return append(append([]any{command}, h.lock...), more...)
}
