// Command conformance is the runner of this package for the script that tests all client packages. It reads commands
// from standard input, one JSON object per line, and decides nothing.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"rlock.example/rlock"
)

type request struct {
	ID                                           int
	As, Do, Client, Kind, Service                string
	User, Password, Lock, Key, Mode, Owner, Hold string
	Addresses                                    []string
	Pool, Lease, Limit, Maxqueue, Acks           *int
	Wait                                         *float64
	Session, Upgrade, TLS                        bool
	Within, Of, Users, Times, Ms, Every, Takes   int
	Timeout, Outage                              int
	IfItFails                                    rlock.Choice
	Fails                                        bool
	Counter, Name, Observer                      string
	Keys                                         [][2]any
	Each                                         []string
}

type reply map[string]any

type lock struct {
	client   *client
	key      string
	options  []rlock.Option
	acquire  func(context.Context, ...rlock.Option) (*rlock.Hold, error)
	election *rlock.Election
}

type client struct {
	redis  redis.UniversalClient
	locker *rlock.Locker
}

type hold struct {
	*rlock.Hold
	lostAt chan int64
}

// runner has the locks and holds that the script names.
type runner struct {
	mu      sync.Mutex
	out     *json.Encoder
	clients map[string]*client
	locks   map[string]*lock
	holds   map[string]*hold
	cancels map[int]context.CancelFunc
	actors  map[string]chan *request
	told    map[string]*sighting
}

// sighting is the latest leader that an observer got.
type sighting struct {
	mu   sync.Mutex
	name *string
	at   int64
}

func main() {
	r := &runner{
		out: json.NewEncoder(os.Stdout), clients: map[string]*client{}, locks: map[string]*lock{},
		holds: map[string]*hold{}, cancels: map[int]context.CancelFunc{}, actors: map[string]chan *request{},
		told: map[string]*sighting{},
	}
	r.say(reply{"hello": "go", "features": []string{
		"cancel", "cancel-many", "close", "sentinel", "cluster", "session", "acks", "limit", "maxqueue", "several", "tls", "gc",
	}})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var q request
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		r.take(q)
	}
}

// take handles q at once, or passes it to its actor.
func (r *runner) take(q request) {
	if q.Do == "lost" || q.Do == "observed" {
		go r.answer(q, context.Background())
		return
	}
	ctx := context.Background()
	if q.Do == "acquire" {
		r.mu.Lock()
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		r.cancels[q.ID] = cancel
		r.mu.Unlock()
	}
	if q.As == "" && q.Do != "churn" && q.Do != "bench" {
		r.answer(q, ctx)
		return
	}
	actor := r.actors[q.As]
	if actor == nil {
		actor = make(chan *request, 1000)
		r.actors[q.As] = actor
		go func() {
			for q := range actor {
				r.answer(*q, r.context(*q))
			}
		}()
	}
	r.keep(q, ctx)
	actor <- &q
}

var contexts sync.Map

func (r *runner) keep(q request, ctx context.Context) { contexts.Store(q.ID, ctx) }

func (r *runner) context(q request) context.Context {
	ctx, _ := contexts.LoadAndDelete(q.ID)
	return ctx.(context.Context)
}

func (r *runner) answer(q request, ctx context.Context) {
	answer, err := r.do(q, ctx)
	if err != nil {
		answer = reply{"error": name(err), "text": err.Error()}
	}
	answer["id"] = q.ID
	r.mu.Lock()
	delete(r.cancels, q.ID)
	r.mu.Unlock()
	r.say(answer)
}

func (r *runner) say(answer reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.out.Encode(answer); err != nil {
		os.Exit(1)
	}
}

func name(err error) string {
	for kind, name := range map[error]string{
		rlock.ErrDeadlock: "Deadlock", rlock.ErrTooMany: "TooMany", rlock.ErrNoAcks: "NoAcks", rlock.ErrNoPerm: "NoPerm",
		rlock.ErrNoReplicas: "NoReplicas", rlock.ErrLost: "Lost", rlock.ErrReleased: "NotHeld", context.Canceled: "Cancelled",
		rlock.ErrKeys: "Invalid",
	} {
		if errors.Is(err, kind) {
			return name
		}
	}
	if errors.Is(err, rlock.ErrUnavailable) {
		return "Unavailable"
	}
	if errors.Is(err, redis.ErrClosed) {
		return "Closed"
	}
	return "Other"
}

func (r *runner) do(q request, ctx context.Context) (reply, error) {
	ok := reply{"ok": true}
	switch q.Do {
	case "open":
		return ok, r.open(q)
	case "close":
		c := r.clients[q.Client]
		return ok, errors.Join(c.locker.Close(), c.redis.Close())
	case "drain":
		r.mu.Lock()
		c := r.clients[q.Client]
		r.mu.Unlock()
		left := c.locker.Drain(time.Duration(q.Timeout) * time.Millisecond)
		return reply{"left": append([]string{}, left...)}, nil
	case "lock":
		r.mu.Lock()
		defer r.mu.Unlock()
		c, choices := r.clients[q.Client], options(q)
		r.locks[q.Lock] = &lock{client: c, key: q.Key, options: choices,
			acquire: func(ctx context.Context, o ...rlock.Option) (*rlock.Hold, error) {
				return c.locker.Lock(ctx, q.Key, append(choices[:len(choices):len(choices)], o...)...)
			}}
		return ok, nil
	case "all", "any", "election", "observe", "observed":
		return r.several(q)
	case "acquire":
		return r.acquire(q, ctx)
	case "check":
		r.mu.Lock()
		c := r.clients[q.Client]
		r.mu.Unlock()
		return ok, c.locker.Check(ctx, q.Key)
	case "once":
		return r.once(q)
	case "release":
		return ok, r.hold(q).Release()
	case "state":
		h, left := r.hold(q), int64(0)
		if h.IsHeld() {
			left = time.Until(h.Deadline()).Milliseconds()
		}
		return reply{"held": left > 0, "left": left}, nil
	case "lost":
		h := r.hold(q)
		select {
		case at := <-h.lostAt:
			return reply{"ok": true, "at": at}, nil
		case <-time.After(time.Duration(q.Within) * time.Millisecond):
			return reply{"ok": false}, nil
		}
	case "cancel":
		r.mu.Lock()
		defer r.mu.Unlock()
		if cancel := r.cancels[q.Of]; cancel != nil { // else it has been answered
			cancel()
		}
		return ok, nil
	case "spawn":
		return ok, exec.Command("sleep", "20").Start()
	case "gc":
		runtime.GC()
		return ok, nil
	case "churn":
		return r.churn(q)
	case "bench":
		return r.bench(q)
	}
	return nil, fmt.Errorf("%s is not known", q.Do)
}

func (r *runner) hold(q request) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds[q.Hold]
}

func (r *runner) open(q request) error {
	size := func(n *int) int {
		if n == nil {
			return 0
		}
		return *n
	}
	var secure *tls.Config
	if q.TLS {
		secure = &tls.Config{InsecureSkipVerify: true}
	}
	var c redis.UniversalClient
	switch q.Kind {
	case "sentinel":
		c = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: q.Service, SentinelAddrs: q.Addresses,
			SentinelUsername: q.User, SentinelPassword: q.Password,
			Username: q.User, Password: q.Password, PoolSize: size(q.Pool), TLSConfig: secure})
	case "cluster":
		c = redis.NewClusterClient(&redis.ClusterOptions{Addrs: q.Addresses,
			Username: q.User, Password: q.Password, PoolSize: size(q.Pool), TLSConfig: secure})
	default:
		c = redis.NewClient(&redis.Options{Addr: q.Addresses[0],
			Username: q.User, Password: q.Password, PoolSize: size(q.Pool), TLSConfig: secure})
	}
	var settings []rlock.Setting
	if q.Outage > 0 {
		settings = append(settings, rlock.Outage(time.Duration(q.Outage)*time.Millisecond))
	}
	locker, err := rlock.New(c, settings...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients[q.Client] = &client{c, locker}
	return err
}

func options(q request) (o []rlock.Option) {
	if q.Mode == "read" {
		o = append(o, rlock.Read())
	}
	if q.Lease != nil {
		o = append(o, rlock.Lease(time.Duration(*q.Lease)*time.Millisecond))
	}
	if q.Limit != nil {
		o = append(o, rlock.Limit(*q.Limit))
	}
	if q.Maxqueue != nil {
		o = append(o, rlock.MaxQueue(*q.Maxqueue))
	}
	if q.Acks != nil {
		o = append(o, rlock.Acks(*q.Acks))
	}
	if q.Session {
		o = append(o, rlock.Session())
	}
	if q.Upgrade {
		o = append(o, rlock.Upgrade())
	}
	if q.Owner != "" {
		o = append(o, rlock.Owner(q.Owner))
	}
	return o
}

func (r *runner) acquire(q request, ctx context.Context) (reply, error) {
	r.mu.Lock()
	l := r.locks[q.Lock]
	r.mu.Unlock()
	var o []rlock.Option
	if q.Wait != nil {
		o = append(o, rlock.Wait(time.Duration(*q.Wait*float64(time.Millisecond))))
	}
	got, err := l.acquire(ctx, o...)
	if errors.Is(err, rlock.ErrNotAcquired) {
		return reply{"ok": false}, nil
	} else if err != nil {
		return nil, err
	}
	h := &hold{got, make(chan int64, 1)}
	context.AfterFunc(got.Context(), func() {
		if context.Cause(got.Context()) == rlock.ErrLost {
			h.lostAt <- time.Now().UnixMilli()
		}
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds[q.Hold] = h
	return reply{"ok": true, "token": got.Token(), "owner": got.Owner(), "key": got.Key()}, nil
}

var errFailed = errors.New("of what ran once")

func (r *runner) once(q request) (reply, error) {
	ms := func(count int) time.Duration { return time.Duration(count) * time.Millisecond }
	choices := options(request{Lease: q.Lease, Acks: q.Acks})
	if q.IfItFails != "" {
		choices = append(choices, rlock.IfItFails(q.IfItFails))
	}
	r.mu.Lock()
	c := r.clients[q.Client]
	r.mu.Unlock()
	ran, err := c.locker.Once(context.Background(), q.Key, ms(q.Every), func(context.Context, *rlock.Hold) error {
		time.Sleep(ms(q.Takes))
		if q.Fails {
			return errFailed
		}
		return nil
	}, choices...)
	if errors.Is(err, errFailed) {
		return reply{"ok": ran, "failed": true}, nil
	}
	return reply{"ok": ran}, err
}

func (r *runner) churn(q request) (reply, error) {
	l := r.locks[q.Lock]
	var inside, most atomic.Int64
	var users sync.WaitGroup
	errs := make(chan error, q.Users)
	ctx := context.Background()
	once := func() error {
		got, err := l.client.locker.Lock(ctx, l.key, l.options...)
		if err != nil {
			return err
		}
		now := inside.Add(1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		count, err := l.client.redis.Get(ctx, q.Counter).Int()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		err = errors.Join(err, l.client.redis.Set(ctx, q.Counter, count+1, 0).Err())
		inside.Add(-1)
		return errors.Join(err, got.Release())
	}
	for range q.Users {
		users.Go(func() {
			for range q.Times {
				if err := once(); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	users.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
		return reply{"ok": true, "inside": most.Load()}, nil
	}
}

func (r *runner) bench(q request) (reply, error) {
	c, ctx := r.clients[q.Client], context.Background()
	var count [2]float64
	var took, busy [2]time.Duration
	pair := []func() error{
		func() error {
			got, err := c.locker.Lock(ctx, q.Key)
			if err == nil {
				err = got.Release()
			}
			return err
		},
		func() error {
			err := c.redis.Do(ctx, "RLOCK.ACQUIRE", q.Key, "o", "DEPTH", 1).Err()
			return errors.Join(err, c.redis.Do(ctx, "RLOCK.RELEASE", q.Key, "o", "WRITE", "DEPTH", 0).Err())
		},
	}
	for turn, end := 0, time.Now().Add(time.Duration(q.Ms)*time.Millisecond); time.Now().Before(end); turn = 1 - turn {
		start, cpu := time.Now(), cpuTime()
		for time.Since(start) < 200*time.Millisecond {
			if err := pair[turn](); err != nil {
				return nil, err
			}
			count[turn]++
		}
		took[turn] += time.Since(start)
		busy[turn] += cpuTime() - cpu
	}
	cpu := func(turn int) float64 { return float64(busy[turn].Microseconds()) / count[turn] }
	return reply{"package": count[0] / took[0].Seconds(), "bare": count[1] / took[1].Seconds(),
		"packageCpu": cpu(0), "bareCpu": cpu(1)}, nil
}

// The processor time that this process has used.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
