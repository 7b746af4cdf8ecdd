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

// One is one of several locks: a key, and its mode.
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

// group is one owner's use of several keys, in key order. To machines, it is one key.
type group struct{ parts []One }

// several is how many locks the server accepts in one request.
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

// All is the locks of several keys. It takes [Wait], [Lease], [MaxQueue], [Acks], [Session], and [Owner]; an owner that
// already holds one of them gets [ErrKeys]; one that has lost such a hold gets [ErrLost] until it has released that
// hold.
func (l *Locker) All(ones []One, choices ...Option) *All {
	parts, err := l.merged(ones)
	return &All{l: l, parts: parts, choices: choices, err: err}
}

// Err returns [ErrKeys] if the keys cannot be locked together. Nothing is sent.
func (a *All) Err() error { return a.err }

// Lock waits until it has acquired them all, the wait has passed, or ctx ends. They form one hold: it is lost when one
// of the locks is, and Release releases the remaining ones.
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

// sitAll returns the seat at the first key, which includes those at the other keys.
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

// mixes gives up the seat if its owner holds the key alone and wants it together with others, or the reverse: the end
// of one hold would then end the other. This is also true of a lost hold until it is released: the remaining locks of
// several have the token that the next grant would take over, and the release of the lost hold would end that grant,
// too.
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

// words returns a request for all keys.
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
	return g.words("RLOCK.MACQUIRE", o.owner, append(modes, "LEASE", o.lease.Milliseconds())...)
}

// parts returns all the locks, of which key is the first.
func (o *options) parts(key string) []One {
	if o.group != nil {
		return o.group.parts
	}
	return []One{{key: key, mode: o.mode}}
}

// released checks the reply to the release of all locks: if fewer were released, the hold was lost.
func (g *group) released(reply *redis.Cmd) *redis.Cmd {
	if count, err := reply.Int64(); err == nil && count < int64(len(g.parts)) {
		return redis.NewCmdResult(nil, replyError(fmt.Sprintf("NOTHELD only %d of %d were held", count, len(g.parts))))
	}
	return reply
}

// replyError is an error that the server replied.
type replyError string

func (e replyError) Error() string { return string(e) }

// RedisError marks it as a [redis.Error].
func (e replyError) RedisError() {}

// rest releases the remaining locks of a lost hold. Otherwise, they would last until their leases expire.
func (t *tenure) rest() {
	if g := t.o.group; g != nil {
		ctx, cancel := context.WithTimeout(context.Background(), duration(machine.Reply/4))
		defer cancel()
		t.l.servers.do(ctx, t.seat.id.key, g.words("RLOCK.MRELEASE", t.o.owner, "TOKEN", t.token))
	}
}

// slot returns the slot of the key in a Cluster.
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

// Leader is the leader of an election. If Owner is empty, there is none.
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

// Election elects a leader: whoever holds the lock of the key, in a session.
type Election struct {
	l         *Locker
	key, name string
}

// Election is the election of key. Followers see name, for example an address; "" stands for the name of the host and
// the process.
func (l *Locker) Election(key, name string) *Election { return &Election{l, key, name} }

// Campaign waits to lead. Each campaign has an owner name of its own, so a process that leads does not lead twice. The
// hold's context ends as soon as its connection does. The default lease is 10 seconds: a leader whose network falls
// silent still counts as the leader for that long.
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

// Leader returns the current leader.
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

// led parses the reply to RLOCK.AWAIT: the leader, and whether it is a new one.
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

// Observe sends the current leader, and then each new leader, until ctx ends: then it closes the channel. The server
// reports changes in messages, so nobody polls. A slow receiver gets only the latest change. If the server refuses,
// Observe logs one warning with [slog] and continues to ask, since it may be permitted later.
func (e *Election) Observe(ctx context.Context) <-chan Leader {
	if err := checkContext(ctx); err != nil {
		panic(err) // here, and not in a goroutine that nobody can save
	}
	leaders := make(chan Leader, 1)
	go func() {
		defer close(leaders)
		hasWarned := false
		(&observer{l: e.l, key: e.key, isNew: true, block: machine.Looks}).observe(ctx, func(leader Leader, err error) bool {
			switch {
			case err == nil:
				select { // what nobody has received is old
				case <-leaders:
				default:
				}
				leaders <- leader
			case !isPassing(err) && !hasWarned:
				hasWarned = true
				slog.Warn(fmt.Sprintf("%s: the leader cannot be observed: %v", e.key, typed(err)))
			}
			return true
		})
	}()
	return leaders
}

// observer learns who holds the write lock of a key.
type observer struct {
	l     *Locker
	key   string
	known Leader
	isNew bool       // nobody is known yet
	block machine.Ms // for how long the server is asked to wait for another one
	moved place      // where a redirection has led
}

// observe calls report with each holder that is not the known one, and with each failure, until ctx ends or it returns false.
func (o *observer) observe(ctx context.Context, report func(Leader, error) bool) {
	for pause := machine.FirstPause; ctx.Err() == nil && !o.l.isClosed(); {
		leader, isNew, err := o.next(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			pause = machine.FirstPause
			if !isNew && !o.isNew {
				continue
			}
			o.known, o.isNew = leader, false
		case !isPassing(err):
			pause = machine.Looks
		}
		if !report(leader, err) {
			return
		}
		if err != nil {
			select {
			case <-time.After(duration(pause)):
			case <-ctx.Done():
			}
			pause = min(2*pause, machine.LongestPause)
		}
	}
}

// next asks once, and waits for a holder that differs from the known one.
func (o *observer) next(ctx context.Context) (Leader, bool, error) {
	words := []any{"RLOCK.AWAIT", o.key, o.known.Token}
	if o.isNew {
		return led(o.l.servers.heed(ctx, o.key, words).Result())
	}
	by, moved := now()+machine.Reply, o.moved
	o.moved = place{} // if nobody is there, the primary is looked for again
	listened, isOver := heed(ctx, func() arrival { return o.l.servers.listen(o.key, moved, by) })
	if !isOver || listened.err != nil {
		return o.known, false, cmp.Or(listened.err, ctx.Err())
	}
	ear := o.l.ear(listened.heard)
	defer ear.hush()
	reply, isOver := heed(ctx, func() arrival {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), remaining(by))
		defer cancel()
		return o.l.sendTo(asking, listened.heard, append(words, "BLOCK", o.block, "TELL", ear.channel, ear.id))
	})
	switch o.moved = reply.next; {
	case !isOver:
		return o.known, false, ctx.Err()
	case reply.in.Outcome.Ending != machine.Waiting:
		return led(reply.reply.Result())
	}
	for by = now() + o.block + machine.Reply; now() < by; ear.box.line.watch() {
		select {
		case m := <-ear.came:
			ended := m.in.Outcome
			isNew := m.in.Event == machine.Message && ended.Ending == machine.Token && ended.Token != o.known.Token
			return Leader{ended.Token, m.owner}, isNew, m.err
		case <-time.After(duration(machine.Looks)):
		case <-ctx.Done():
			return o.known, false, ctx.Err()
		case <-o.l.closing.Done():
			return o.known, false, redis.ErrClosed
		}
	}
	return o.known, false, nil
}
