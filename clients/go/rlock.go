// Package rlock is a lock for go-redis whose server has the RLOCK module: reentrant, fair, read-write, fenced.
//
//	locker, err := rlock.New(client) // a redis.Client, with Sentinel or not, or a redis.ClusterClient
//	hold, err := locker.Lock(ctx, "order:42", rlock.Wait(10*time.Second))
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, hold.Release()) }() // err is the named result
//	return work(hold.Context(), hold.Token())                 // the context ends when the hold is lost
//
// Any number of goroutines may use a Locker and what it returns. Each acquisition is its own owner, unless [Owner]
// names one: then every acquisition under that name re-enters, also by another Locker of this process.
package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// Locker acquires locks. Create one for the whole program.
type Locker struct {
	servers  *servers
	name     func() string
	count    atomic.Uint64
	requests atomic.Uint64   // with a late reply
	holds    sync.Map        // of *tenure: what it has to look after
	draining context.Context // ends with Drain, and with Close
	stop     context.CancelFunc
	closing  context.Context // ends with Close
	close    context.CancelFunc

	underWay atomic.Int64  // drivers
	none     chan struct{} // gets a value when it is closed and the last of them has ended

	telemetry telemetry
	worries   worries
	outage    machine.Ms // after which a wait gives up
}

// Setting configures a Locker.
type Setting func(*Locker)

// Outage is how long a wait continues without a server before it ends with [ErrUnavailable]. By default, it waits until
// its own time is up.
func Outage(most time.Duration) Setting {
	return func(l *Locker) { l.outage = max(1, millis(most)) }
}

// New makes a Locker for the servers of client. It opens its own connections and does not use client's pool.
func New(client redis.UniversalClient, settings ...Setting) (*Locker, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	servers, err := newServers(client)
	if err != nil {
		return nil, err
	}
	l := &Locker{
		servers: servers,
		none:    make(chan struct{}, 1),
		outage:  machine.Forever,
		name: sync.OnceValue(func() string {
			host, _ := os.Hostname()
			return fmt.Sprintf("%.64s/%d/%s", host, os.Getpid(), servers.name())
		}),
	}
	l.closing, l.close = context.WithCancel(context.Background())
	l.draining, l.stop = context.WithCancel(l.closing)
	for _, set := range settings {
		if set == nil {
			return nil, refused("a setting is nil")
		}
		set(l)
	}
	l.telemetry.start(l.closing)
	return l, nil
}

// Close closes the connections. Waits end with [redis.ErrClosed], and anything that they may have been granted is
// released, which Close waits for, but at most a second. Holds are lost: those with [Session] end at once, others with
// their leases.
func (l *Locker) Close() error {
	if l.isClosed() {
		return nil
	}
	l.close()
	l.holds.Range(func(held, _ any) bool { // before anything that may take its time
		held.(*tenure).pass(machine.Gone)
		return true
	})
	if l.underWay.Load() > 0 {
		select {
		case <-l.none:
		case <-time.After(duration(machine.Closes)):
		}
	}
	l.servers.close()
	return nil
}

func (l *Locker) isClosed() bool { return l.closing.Err() != nil }

func (l *Locker) isDraining() bool { return l.draining.Err() != nil }

type options struct {
	wait                            machine.Ms
	lease                           time.Duration
	mode, owner                     string
	isNamed                         bool // by the user
	upgrade, session, isNotRenewed  bool
	limit, acks, maxQueue           int
	limitIsSet, acksSet, maxQueueIs bool
	group                           *group // several keys
	notice                          *notice
	ifItFails                       Choice // of Once
	err                             error  // of an option
}

// called returns the name of the lock in messages.
func (o *options) called(key string) string { return strings.Join(o.keys(key), ", ") }

func (o *options) keys(key string) (keys []string) {
	for _, one := range o.parts(key) {
		keys = append(keys, one.key)
	}
	return keys
}

// Option says how to acquire a lock. Without options it is the write lock, and the wait ends with the context.
type Option func(*options)

// Read requests the read lock, which is shared.
func Read() Option { return func(o *options) { o.mode = "READ" } }

// Wait sets the longest wait; 0 does not wait. Without it, only the end of the context ends the wait.
func Wait(wait time.Duration) Option {
	return func(o *options) {
		if wait < 0 {
			o.refuse(refused("a wait must be at least 0, which does not wait, not %v", wait))
		}
		if o.wait = machine.Forever; wait < century {
			o.wait = max(0, millis(wait+time.Millisecond-1))
		}
	}
}

// Lease sets how long the hold outlives a process that died or is cut off; the default is 30 seconds. While the process
// lives, the lease is renewed. It may be from one millisecond (with [Session], one second) to seven days.
func Lease(lease time.Duration) Option {
	return func(o *options) {
		o.refuse(checkLease(lease))
		o.lease = lease
	}
}

// NoRenewal makes the hold end with its lease, unless [Hold.Extend] extends it.
func NoRenewal() Option { return func(o *options) { o.isNotRenewed = true } }

// Limit requests one of n permits: a read lock that at most n owners hold at once.
func Limit(n int) Option {
	return func(o *options) {
		o.refuse(checkCount("Limit", n, 1, mostPermits, "permits"))
		o.mode, o.limit, o.limitIsSet = "READ", n, true
	}
}

// MaxQueue refuses to wait if n requests already wait.
func MaxQueue(n int) Option {
	return func(o *options) {
		o.refuse(checkCount("MaxQueue", n, 0, mostWaiters, "waiters"))
		o.maxQueue, o.maxQueueIs = n, true
	}
}

// Acks makes a grant, and each renewal, count only when n replicas have acknowledged it.
func Acks(n int) Option {
	return func(o *options) {
		o.refuse(checkCount("Acks", n, 0, mostReplicas, "replicas"))
		o.acks, o.acksSet = n, true
	}
}

// Session ties the hold to its own connection: when this process dies, the next waiter gets the lock at once.
func Session() Option { return func(o *options) { o.session = true } }

// Upgrade requests the write lock on top of the owner's own read lock. It needs [Owner].
func Upgrade() Option { return func(o *options) { o.upgrade = true } }

// Owner names the owner. An owner that holds the lock already re-enters it. By convention an owner does one thing at a
// time. A name is 1 to 512 bytes long.
func Owner(name string) Option {
	return func(o *options) {
		o.refuse(checkOwner(name))
		o.owner, o.isNamed = name, true
	}
}

func (l *Locker) options(choices []Option) (*options, error) {
	o := &options{wait: machine.Forever, lease: 30 * time.Second, mode: "WRITE"}
	for _, choose := range choices {
		if choose == nil {
			return nil, refused("an option is nil")
		}
		choose(o)
	}
	if !o.isNamed {
		o.owner = fmt.Sprintf("%s-%d", l.name(), l.count.Add(1))
	}
	return o, o.check()
}

// TryLock acquires the lock of key if it is free, and returns [ErrNotAcquired] if not.
func (l *Locker) TryLock(ctx context.Context, key string, choices ...Option) (*Hold, error) {
	return l.Lock(ctx, key, append(append([]Option{}, choices...), Wait(0))...)
}

// Lock waits until it has acquired the lock of key, the wait has passed, or ctx ends. The hold does not end with ctx.
func (l *Locker) Lock(ctx context.Context, key string, choices ...Option) (*Hold, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	o, err := l.options(choices)
	if err == nil && o.ifItFails != "" {
		err = refused("IfItFails is an option of Once")
	}
	if err != nil {
		return nil, err
	}
	return l.lock(ctx, key, o)
}

func (l *Locker) lock(ctx context.Context, key string, o *options) (hold *Hold, err error) {
	if l.isClosed() {
		return nil, redis.ErrClosed
	}
	ended := l.telemetry.waits(ctx, o.called(key))
	defer func() { ended(err) }()
	begin := now() + 1 // the clock is cut to milliseconds; a wait is never short
	o.notice = &notice{o.called(key), begin + machine.Patience, &l.worries}
	if end, has := ctx.Deadline(); has && o.wait > 0 {
		o.wait = min(o.wait, max(1, millis(time.Until(end))))
	}
	seat, err := l.sit(ctx, key, o, begin)
	if err == nil {
		err = seat.mixes(o)
	}
	if err != nil {
		return nil, err
	}
	return l.acquire(ctx, seat, o, begin)
}

// Do acquires the lock, calls work with a context that ends when the hold is lost, and releases the lock.
//
// However work ends, that outcome is kept: its error, a panic, or the end of its goroutine. An error of the release is
// joined to it. If ctx has ended, Do waits at most three seconds for the release.
func (l *Locker) Do(ctx context.Context, key string, work func(context.Context, *Hold) error, choices ...Option) error {
	if work == nil {
		return refused("the function to call is nil")
	}
	hold, err := l.Lock(ctx, key, choices...)
	if err != nil {
		return err
	}
	isOver := false
	defer func() {
		if isOver { // else a panic, or the end of this goroutine, is under way, and goes on
			return
		}
		if err := hold.releaseSoon(ctx); err != nil {
			slog.Warn(fmt.Sprintf("%s: the release failed: %v", hold.tenure.called(), err))
		}
	}()
	err = hold.during(ctx, work)
	isOver = true
	return errors.Join(err, hold.releaseSoon(ctx))
}

// during calls work with a context that ends with ctx, and when the hold is lost.
func (h *Hold) during(ctx context.Context, work func(context.Context, *Hold) error) error {
	working, stop := context.WithCancelCause(ctx)
	defer context.AfterFunc(h.Context(), func() { stop(context.Cause(h.Context())) })()
	defer stop(nil)
	return work(working, h)
}
