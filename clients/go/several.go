package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// One is one of several locks: a key, and how it is locked.
type One struct {
	key, mode string
	limit     int
	isPermit  bool
}

// Key is the write lock of key.
func Key(key string) One { return One{key: key, mode: "WRITE"} }

// ReadKey is the read lock of key.
func ReadKey(key string) One { return One{key: key, mode: "READ"} }

// LimitKey is one of n permits of key; n is at least 1.
func LimitKey(key string, n int) One { return One{key: key, mode: "READ", limit: n, isPermit: true} }

// group is what one owner has of several keys, in key order. To machines it is one key.
type group struct{ parts []One }

// several is how many locks the server takes at once.
const several = 128

// ErrKeys: keys that cannot be locked together. Nothing was sent.
var ErrKeys = errors.New("rlock: these keys cannot be locked together")

// merged returns the locks in key order, each once.
func (l *Locker) merged(ones []One) ([]One, error) {
	sorted := slices.Clone(ones)
	slices.SortStableFunc(sorted, func(a, b One) int { return cmp.Compare(a.key, b.key) })
	sorted = slices.Compact(sorted)
	for at, one := range sorted {
		if one.mode == "" {
			return nil, fmt.Errorf("%w: an empty One names no key; use Key, ReadKey or LimitKey", ErrKeys)
		}
		if one.isPermit && (one.limit < 1 || one.limit > mostPermits) {
			return nil, fmt.Errorf("%w: a limit must be from 1 to %d permits, not %d, at %s", ErrKeys, mostPermits, one.limit, one.key)
		}
		if at > 0 && sorted[at-1].key == one.key {
			return nil, fmt.Errorf("%w: %s is named twice, with two modes", ErrKeys, one.key)
		}
		if l.servers.cluster != nil && slot(one.key) != slot(sorted[0].key) {
			return nil, fmt.Errorf("%w: %s and %s are in two slots; give them a hash tag", ErrKeys, sorted[0].key, one.key)
		}
	}
	if len(sorted) == 0 || len(sorted) > several {
		return nil, fmt.Errorf("%w: from 1 to %d, not %d", ErrKeys, several, len(sorted))
	}
	return sorted, nil
}

// All is several locks, acquired in one step: all of them, or none.
type All struct {
	l       *Locker
	parts   []One
	choices []Option
	err     error
}

// All is the locks of several keys. It takes [Wait], [Lease], [MaxQueue], [Acks], [Session], and [Owner]; an owner
// that holds one of them already is refused with [ErrKeys], and with [ErrLost] until it has released a hold that it lost.
func (l *Locker) All(ones []One, choices ...Option) *All {
	parts, err := l.merged(ones)
	return &All{l: l, parts: parts, choices: choices, err: err}
}

// Err is [ErrKeys] if the keys cannot be locked together, before anything is sent.
func (a *All) Err() error { return a.err }

// Lock waits until it has acquired them all, the wait has passed, or ctx ends. The hold is one hold: it is lost when one
// of them is, and Release releases what is left.
func (a *All) Lock(ctx context.Context, choices ...Option) (*Hold, error) {
	if a.err != nil {
		return nil, a.err
	}
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	o, err := a.l.options(append(slices.Clone(a.choices), choices...))
	if err != nil {
		return nil, err
	}
	if o.mode != "WRITE" || o.limitIsSet || o.upgrade {
		return nil, fmt.Errorf("%w: each has a mode of its own, and there is no Upgrade", ErrKeys)
	}
	o.group = &group{parts: a.parts}
	return a.l.lock(ctx, a.parts[0].key, o)
}

// sitAll returns the seat at the first key, with those at the others.
func (l *Locker) sitAll(ctx context.Context, o *options, begin machine.Ms) (*seat, error) {
	var first *seat
	for _, one := range o.group.parts {
		alone := *o
		alone.mode = one.mode
		s, err := l.sitAt(ctx, one.key, &alone, begin)
		if err == nil {
			err = s.mixes(o)
		}
		if err != nil {
			if first != nil {
				first.leave()
			}
			return nil, err
		}
		if first == nil {
			first = s
		} else {
			first.others = append(first.others, s)
		}
	}
	return first, nil
}

// mixes gives up the seat if its owner holds the key by itself and wants it with others, or the other way round: then the
// end of one would be that of the other. A loss changes nothing until it is released: what is left of several locks has
// the token that the next grant would take over, and the release of the lost ones would end that, too.
func (s *seat) mixes(o *options) error {
	held := s.tenure
	if held == nil || (o.group == nil && held.o.group == nil) {
		return nil
	}
	s.leave()
	if held.context.Err() != nil {
		return fmt.Errorf("%w: %s: release the lost hold of %s first", ErrLost, o.owner, held.called())
	}
	return fmt.Errorf("%w: %s holds %s already", ErrKeys, o.owner, s.id.key)
}

// join makes t the hold of all seats.
func (t *tenure) join() {
	t.others = slices.Clone(t.seat.others)
	for _, other := range t.others {
		other.tenure = t
		other.use()
	}
}

// words is a request for all keys.
func (g *group) words(command, owner string, rest ...any) []any {
	words := []any{command, len(g.parts)}
	for _, one := range g.parts {
		words = append(words, one.key)
	}
	return append(append(words, owner), rest...)
}

func (g *group) acquire(o *options) []any {
	modes := []any{"MODES"}
	for _, one := range g.parts {
		if one.isPermit {
			modes = append(modes, one.limit)
		} else {
			modes = append(modes, one.mode)
		}
	}
	return o.acked(g.words("RLOCK.MACQUIRE", o.owner, append(modes, "LEASE", o.lease.Milliseconds())...))
}

func (g *group) keys() []string {
	keys := make([]string, len(g.parts))
	for at, one := range g.parts {
		keys[at] = one.key
	}
	return keys
}

// token looks for what the owner holds. One of the locks may have ended by itself.
func (l *Locker) token(o *options, by machine.Ms) *redis.Cmd {
	var reply *redis.Cmd
	for _, one := range o.group.parts {
		reply = l.servers.do(context.Background(), remaining(by), one.key, []any{"RLOCK.INFO", one.key, "HOLDERS", 10000, "WAITERS", 0})
		if reply.Err() == nil {
			alone := *o
			alone.mode, alone.group = one.mode, nil
			reply = tokenIn(reply.Val(), &alone)
		}
		if !errors.Is(reply.Err(), redis.Nil) {
			break
		}
	}
	return reply
}

// released is what the release of all says: less than all is a loss.
func (g *group) released(reply *redis.Cmd) *redis.Cmd {
	if count, err := reply.Int64(); err == nil && count < int64(len(g.parts)) {
		return redis.NewCmdResult(nil, less(fmt.Sprintf("NOTHELD only %d of %d were held", count, len(g.parts))))
	}
	return reply
}

// less is an error of the server, in our words.
type less string

func (e less) Error() string { return string(e) }

// RedisError makes it a [redis.Error].
func (e less) RedisError() {}

// rest ends what is left of a hold that was lost. Its leases do that anyway.
func (t *tenure) rest() {
	if g := t.o.group; g != nil {
		words := g.words("RLOCK.MRELEASE", t.o.owner, "TOKEN", t.token)
		t.l.servers.do(context.Background(), duration(machine.Reply/4), t.seat.id.key, words)
	}
}

// slot is where a Cluster has the key.
func slot(key string) uint16 {
	if begin := strings.IndexByte(key, '{'); begin >= 0 {
		if size := strings.IndexByte(key[begin+1:], '}'); size > 0 {
			key = key[begin+1 : begin+1+size]
		}
	}
	var crc uint16
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc & 0x8000
			if crc <<= 1; carry != 0 {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}

// --- leadership ----------------------------------------------------------------------------------

// Leader is who leads. Without Owner nobody does.
type Leader struct {
	Token int64
	Owner string
}

// Name is the name that the leader's election was given.
func (l Leader) Name() string {
	if end := strings.LastIndexByte(l.Owner, '/'); end >= 0 {
		return l.Owner[:end]
	}
	return l.Owner
}

// Election is about who leads: whoever holds the lock of the key, in a session.
type Election struct {
	l         *Locker
	key, name string
}

// Election is the election of key. Followers are told name, for example an address; it is "" for the name of the host
// and the process.
func (l *Locker) Election(key, name string) *Election { return &Election{l, key, name} }

// Campaign waits to lead. Each has an owner name of its own: a process that leads does not lead twice. The hold's context
// ends as soon as its connection does. Without other options its lease is 10 seconds: so long a leader is believed whose
// network says nothing.
func (e *Election) Campaign(ctx context.Context, choices ...Option) (*Hold, error) {
	unique := fmt.Sprintf("%s-%d", e.l.name(), e.l.count.Add(1))
	if e.name != "" {
		unique = unique[strings.LastIndexByte(unique, '/'):]
		if most := longestOwner - len(unique); len(e.name) > most {
			return nil, refused("the name of an election must be at most %d bytes long, not %d", most, len(e.name))
		}
		unique = e.name + unique
	}
	ours := []Option{Lease(10 * time.Second)}
	return e.l.Lock(ctx, e.key, append(append(ours, choices...), Session(), Owner(unique))...)
}

// Leader says who leads now.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	if err := checkContext(ctx); err != nil {
		return Leader{}, err
	}
	reply, err := e.l.servers.heed(ctx, e.key, []any{"RLOCK.AWAIT", e.key, 0}).Result()
	leader, _, err := led(reply, err)
	switch {
	case err == nil:
		return leader, nil
	case ctx.Err() != nil:
		return leader, context.Cause(ctx)
	case isPassing(err):
		return leader, unavailable(e.key, typed(err))
	}
	return leader, typed(err)
}

// led is the reply to RLOCK.AWAIT: who leads, and whether it is another one.
func led(reply any, err error) (leader Leader, isNew bool, failure error) {
	if errors.Is(err, redis.Nil) {
		return leader, false, nil
	}
	if row, _ := reply.([]any); err == nil && len(row) == 2 {
		leader.Token, _ = row[0].(int64)
		leader.Owner, _ = row[1].(string)
	}
	return leader, err == nil, err
}

// Observe sends who leads, at first and whenever that changes, until ctx ends: then it closes the channel. It uses one
// connection, and asks again when that breaks. A receiver that is slow is told the latest change only. If the server
// refuses, it logs one warning with [slog], and goes on asking: it may be allowed later.
func (e *Election) Observe(ctx context.Context) <-chan Leader {
	if err := checkContext(ctx); err != nil {
		panic(err) // here, and not in a goroutine that nobody can save
	}
	leaders := make(chan Leader, 1)
	go func() {
		defer close(leaders)
		var own own
		defer func() {
			if own.line != nil {
				own.drop()
			}
		}()
		leader, isFirst, pause, hasWarned := Leader{}, true, 10*time.Millisecond, false
		for ctx.Err() == nil && !e.l.isClosed() {
			next, isNew, err := e.next(ctx, &own, leader, isFirst)
			if err != nil {
				if !isPassing(err) && ctx.Err() == nil {
					pause = time.Second
					if !hasWarned {
						hasWarned = true
						slog.Warn(fmt.Sprintf("%s: the leader cannot be observed: %v", e.key, typed(err)))
					}
				}
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
				pause = min(2*pause, duration(machine.LongestPause))
				continue
			}
			pause = 10 * time.Millisecond
			if !isNew && !isFirst {
				continue
			}
			leader, isFirst = next, false
			select { // what nobody has received is old
			case <-leaders:
			default:
			}
			leaders <- leader
		}
	}()
	return leaders
}

// next asks once, on the connection of the observer, for at most a second.
func (e *Election) next(ctx context.Context, own *own, known Leader, isFirst bool) (Leader, bool, error) {
	if own.line == nil {
		next := own.next
		own.next = place{} // if nobody is there, the primary is looked for again
		opened := e.l.open(e.key, next.node, now()+machine.Reply)
		if opened.err != nil {
			return known, false, opened.err
		}
		own.line, own.isAsk = opened.line, next.isAsk
	}
	words := []any{"RLOCK.AWAIT", e.key, known.Token}
	if !isFirst {
		words = append(words, "BLOCK", machine.Looks)
	}
	own.ask(words)
	select {
	case reply := <-own.answer:
		leader, isNew, err := led(reply.Result())
		if err != nil {
			_, _ = e.l.heard(own, reply)
			own.drop()
		}
		return leader, isNew, err
	case <-time.After(duration(machine.Looks + machine.Reply)):
	case <-ctx.Done():
	case <-e.l.closing.Done():
	}
	own.drop()
	return known, false, context.DeadlineExceeded
}
