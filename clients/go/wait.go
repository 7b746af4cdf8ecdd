package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ask is one acquisition under way.
type ask struct {
	*entry
	l        *Locker
	o        *options
	words    []any
	depth    int       // where to be afterwards
	end      time.Time // of the patience; zero is never
	sent     time.Time // when what is granted was asked for: its lease is no older
	isUnsure bool      // an answer is missing, so perhaps it was granted
	isPlaced bool      // a ticket may stand
	session  *line
	// The lock was in use a moment ago, when quickly asked.
	wasRefused bool
	isAsked    bool // quickly
}

// run asks until there is a grant, a refusal, or no time left.
func (a *ask) run(ctx context.Context) (int64, error) {
	warnsAt := time.Now().Add(a.patience())
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		token, err := a.once(ctx)
		if err == nil && time.Since(a.sent) > a.o.lease/3 {
			err = a.confirm(token)
		}
		switch {
		case ctx.Err() != nil:
			a.isUnsure = a.isUnsure || err == nil
			return 0, context.Cause(ctx)
		case err == nil:
			return token, nil
		case errors.Is(err, redis.Nil):
			return 0, fmt.Errorf("%w: %s is in use", ErrNotAcquired, a.key)
		case errors.Is(err, errGone): // after a long wait: ask again
			a.endSession()
		case !isPassing(err):
			return 0, typed(err)
		}
		left := a.left()
		if left <= 0 {
			return 0, fmt.Errorf("%w: %w", ErrUnavailable, typed(err))
		}
		if !warnsAt.IsZero() && time.Now().After(warnsAt) {
			warnsAt = time.Time{}
			slog.Warn(fmt.Sprintf("%s: still asking for it, though %v", a.key, typed(err)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(left, pause/2+rand.N(pause))):
		}
	}
}

// once asks in the best way available: without waiting, by a blocked connection, or by a ticket.
func (a *ask) once(ctx context.Context) (int64, error) {
	if a.o.session && a.line == nil {
		return a.blocked(ctx, true)
	}
	token, err := int64(0), error(redis.Nil)
	if !a.wasRefused {
		token, err = a.plain(ctx, a.words)
	}
	a.wasRefused = false
	if !errors.Is(err, redis.Nil) || a.o.wait == 0 {
		return token, err
	}
	select {
	case a.l.slots <- struct{}{}:
		defer func() { <-a.l.slots }()
		return a.blocked(ctx, false)
	default:
		return a.ticket(ctx)
	}
}

func (a *ask) plain(ctx context.Context, words []any) (int64, error) {
	a.sent = time.Now()
	// ctx does not cut this off: an unread reply would be a hold that nobody knows of.
	token, err := a.l.serversFor(a.o).do(context.WithoutCancel(ctx), a.patience(), a.key, words).Int64()
	a.isUnsure = a.isUnsure || isBroken(err) && !isUnsent(err)
	return token, err
}

func (a *ask) patience() time.Duration {
	if a.o.acksSet {
		return 2 * patience
	}
	return patience
}

func (a *ask) endSession() {
	if a.session != nil {
		a.session.kill()
		a.session = nil
	}
}

// left is the remaining time.
func (a *ask) left() time.Duration {
	if a.end.IsZero() {
		return time.Hour
	}
	return time.Until(a.end)
}

// waiting adds how long to wait, and beside how many others.
func (a *ask) waiting(words []any, way string, wait time.Duration) []any {
	words = append(append([]any{}, words...), way, wait.Milliseconds())
	if a.o.maxQueueIs {
		words = append(words, "MAXQUEUE", a.o.maxQueue)
	}
	return words
}

// blocked asks on its own connection, which the session keeps.
func (a *ask) blocked(ctx context.Context, isSession bool) (int64, error) {
	words := a.words
	if isSession {
		words = append(append([]any{}, words...), "SESSION")
	}
	if a.o.wait != 0 {
		wait := time.Duration(0) // for ever
		if !a.end.IsZero() {
			wait = max(time.Millisecond, a.left()) // at least 1 ms: BLOCK 0 is for ever
		}
		words = a.waiting(words, "BLOCK", wait)
	}
	n, err := a.l.servers.locate(ctx, a.key)
	if err != nil {
		return 0, err
	}
	var token int64
	for hops, isAsk := 0, false; hops < 4; hops++ {
		token, err = a.on(ctx, n.line(), words, isAsk, isSession)
		var addr string
		if addr, isAsk = n.redirection(err); addr == "" {
			break
		}
		n = a.l.servers.at(addr, &n.options)
		if !isAsk {
			a.l.servers.reload(ctx)
		}
	}
	if isBroken(err) {
		a.l.servers.reload(ctx)
	}
	return token, err
}

// on asks on l. When ctx ends, it gives up the place and then checks whether the grant came first.
func (a *ask) on(ctx context.Context, l *line, words []any, isAsk, isSession bool) (int64, error) {
	a.sent = time.Now()
	answer := l.send(words, isAsk)
	watched, stop := context.WithCancel(context.Background())
	defer stop()
	if a.o.wait != 0 {
		go a.watch(watched, l)
	}
	var late <-chan time.Time
	if !a.end.IsZero() {
		late = time.After(max(0, a.left()) + tidying)
	}
	var cmd *redis.Cmd
	select {
	case cmd = <-answer:
	case <-late:
		l.kill()
		cmd = <-answer
	case <-ctx.Done():
		cmd = a.withdraw(l, answer)
	}
	token, err := cmd.Int64()
	switch {
	case isBroken(err):
		a.isUnsure = a.isUnsure || !isUnsent(err)
		l.kill()
	case err == nil && isSession:
		a.session = l
	default:
		l.put(cap(a.l.slots))
	}
	return token, err
}

// withdraw ends the wait on l. It repeats that, because ctx may end just before the wait begins.
func (a *ask) withdraw(l *line, answer <-chan *redis.Cmd) *redis.Cmd {
	for end := time.Now().Add(2 * tidying); time.Now().Before(end) && !a.l.isClosed(); {
		_ = a.l.servers.do(context.Background(), tidying, a.key, []any{"RLOCK.CANCEL", a.key, a.o.owner}).Err()
		select {
		case cmd := <-answer:
			return cmd
		case <-time.After(20 * time.Millisecond):
		}
	}
	l.kill()
	return <-answer
}

// watch kills l when the current primary does not know of the wait: the server at which l is blocked was stopped or cut
// off, and may stay silent forever.
func (a *ask) watch(ctx context.Context, l *line) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for misses := 0; misses < 2; {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		err := a.l.servers.do(ctx, time.Second, a.key, []any{"RLOCK.PLACE", a.key, a.o.owner}).Err()
		if errors.Is(err, redis.Nil) && a.isPending(ctx) {
			err = nil
		}
		// The place is unknown: is that server still the primary?
		if errors.Is(err, redis.Nil) || err != nil && a.l.servers.isElsewhere(ctx, a.key, l) {
			misses++
		} else {
			misses = 0
		}
	}
	if ctx.Err() == nil {
		l.kill()
	}
}

// isPending says whether the owner has a pending grant.
func (a *ask) isPending(ctx context.Context) bool {
	found, _ := a.found(ctx, time.Second)
	return field(found, "acks") == "pending"
}

// found is what the server says of the owner's hold, nil if there is none.
func (a *ask) found(ctx context.Context, patience time.Duration) (any, error) {
	about, err := a.l.servers.do(ctx, patience, a.key, []any{"RLOCK.INFO", a.key, "HOLDERS", 10000}).Result()
	holders, _ := field(about, "holders").([]any)
	for _, holder := range holders {
		mode, _ := field(holder, "mode").(string)
		if field(holder, "owner") == a.o.owner && strings.EqualFold(mode, a.o.mode) {
			return holder, nil
		}
	}
	return nil, err
}

// field returns the value under name, of a map or of a list of names and values.
func field(reply any, name string) any {
	switch reply := reply.(type) {
	case map[any]any:
		return reply[name]
	case []any:
		for at := 0; at+1 < len(reply); at += 2 {
			if reply[at] == name {
				return reply[at+1]
			}
		}
	}
	return nil
}

// ticket keeps a place by asking repeatedly, and at once when its turn is announced.
func (a *ask) ticket(ctx context.Context) (int64, error) {
	turn, hush := a.l.turns.listen(ctx, a.key, a.o.owner)
	defer hush()
	words := a.waiting(a.words, "QUEUE", ticketWindow)
	for {
		wasPlaced := a.isPlaced
		a.isPlaced = true
		token, err := a.plain(ctx, words)
		if !errors.Is(err, redis.Nil) {
			a.isPlaced = err != nil && (wasPlaced || !isUnsent(err))
			return token, err
		}
		if a.o.maxQueueIs && !wasPlaced {
			place := a.l.servers.do(ctx, patience, a.key, []any{"RLOCK.PLACE", a.key, a.o.owner})
			if errors.Is(place.Err(), redis.Nil) {
				return 0, redis.Nil
			}
		}
		left := a.left()
		if left <= 0 {
			return 0, redis.Nil
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return 0, redis.Nil
		case <-time.After(min(left, ticketPoll-rand.N(ticketPoll/10))):
		}
	}
}

var errGone = errors.New("rlock: granted, and lost before it was noticed")

// confirm renews a hold that was granted after a long wait, because the reply may have been unread for some time.
func (a *ask) confirm(token int64) error {
	until := time.Now().Add(a.o.lease)
	for {
		sent := time.Now()
		err := a.renew(a.o, token, patience)
		switch {
		case err == nil:
			a.sent = sent
			return nil
		case code(err) == "NOTHELD":
			return errGone
		case !isPassing(err) || time.Now().After(until) || a.l.isClosed():
			a.isUnsure = true
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// reduce goes down to the depth of before, whatever was granted. By its token, because a release can arrive long after
// nobody waits for its reply, and must not end a later hold of this owner.
func (a *ask) reduce(ctx context.Context) error {
	held := any(a.token)
	if a.depth == 1 {
		found, err := a.found(ctx, patience)
		if held = field(found, "token"); held == nil {
			return err
		}
	}
	words := []any{"RLOCK.RELEASE", a.key, a.o.owner, a.o.mode, "TOKEN", held, "DEPTH", a.depth - 1}
	err := a.l.servers.do(ctx, patience, a.key, words).Err()
	if code(err) == "NOTHELD" {
		return nil
	}
	return err
}

// undo undoes what the acquisition may have left: a place, and a grant whose reply was lost.
func (a *ask) undo() {
	again := a.isUnsure
	end := time.Now().Add(a.o.lease + patience)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		ctx := context.Background()
		err := a.l.servers.do(ctx, patience, a.key, []any{"RLOCK.CANCEL", a.key, a.o.owner}).Err()
		if err == nil && a.isUnsure {
			err = a.reduce(ctx)
		}
		switch {
		case isPassing(err) && time.Now().Before(end) && !a.l.isClosed():
			time.Sleep(pause/2 + rand.N(pause))
		case again && !isPassing(err):
			// Once more: the server may only now execute what it had yet to read from a closed connection.
			again = false
			time.Sleep(tidying)
		default:
			return
		}
	}
}
