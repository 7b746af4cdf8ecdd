package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// waiting begins a wait for key, which somebody holds, and returns when the server has registered it.
func (s *server) waiting(l *Locker, key string, choices ...Option) chan *Hold {
	s.t.Helper()
	granted, before := make(chan *Hold, 1), s.waiters(key)
	go func() { granted <- must(s.t)(l.Lock(ctx, key, append(choices, Wait(time.Minute))...)) }()
	until(s.t, "it waits", func() bool { return s.waiters(key) > before })
	return granted
}

// A busy machine delays some of them, but not all.
func TestAHandOffTakesMilliseconds(t *testing.T) {
	s := start(t)
	l := s.locker()
	best := time.Hour
	for range 20 {
		hold := must(t)(l.Lock(ctx, "order"))
		granted := s.waiting(l, "order")
		begin := time.Now()
		release(t, hold)
		next := <-granted
		best = min(best, time.Since(begin))
		release(t, next)
	}
	if best > 50*time.Millisecond {
		t.Error(best)
	}
	t.Log("the fastest of 20: ", best)
}

func TestASubscriptionThatEndsDelaysAGrantByOneLookAtMost(t *testing.T) {
	s := durable(t)
	c := cut(t, s.addr())
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: c.listener.Addr().String()}))
	for what, lose := range map[string]func(){
		"it is killed":           func() { s.client.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub") },
		"its messages are lost":  func() { c.isDeaf.Store(true) },
		"the server has crashed": func() { s.kill(); s.again() },
	} {
		for way, choices := range ways {
			s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 600000)
			granted := s.waiting(l, "busy", choices...)
			lose()
			begin := time.Now()
			s.client.Do(ctx, "RLOCK.RELEASE", "busy", "somebody")
			hold := <-granted
			took := time.Since(begin)
			t.Log(what, way, took)
			// After a crash, no dials are made for a moment, and a session is requested again only after a pause.
			if took > 3*time.Second {
				t.Error(what, way, took)
			}
			c.isDeaf.Store(false)
			release(t, hold)
			until(t, "nothing is left", func() bool { return s.mode("busy") == "free" && s.waiters("busy") == 0 })
		}
	}
}

// Only the subscription fails, while it is needed: the server is silent on it, and everything else works.
func TestASubscriptionThatIsSilentIsReplaced(t *testing.T) {
	s := start(t)
	c := cut(t, s.addr())
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: c.listener.Addr().String()}))
	s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 600000)
	granted := s.waiting(l, "busy")
	box := &l.servers.at("", nil).box
	before := box.Load()
	c.isDeaf.Store(true)
	until(t, "it is replaced", func() bool { return box.Load() != before })
	c.isDeaf.Store(false)
	s.client.Do(ctx, "RLOCK.RELEASE", "busy", "somebody")
	release(t, <-granted)
}

// keyIn returns a key that this node of the Cluster serves.
func keyIn(servers []*server, at int, prefix string) string {
	for number := 0; ; number++ {
		if key := fmt.Sprint(prefix, number); int(slot(key))/5462 == at {
			return key
		}
	}
}

func TestAWaitFollowsItsSlot(t *testing.T) {
	servers := startCluster(t)
	id := func(s *server) string { return s.client.Do(ctx, "CLUSTER", "MYID").Val().(string) }
	from, to := servers[0], servers[1]
	all := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[2].addr()}})
	one := redis.NewClient(&redis.Options{Addr: servers[2].addr()}) // which redirects
	for what, l := range map[string]*Locker{"a Cluster": newLocker(t, all), "one of its servers": newLocker(t, one)} {
		for way, choices := range ways {
			key := keyIn(servers, 0, what+way)
			from.client.Do(ctx, "RLOCK.ACQUIRE", key, "somebody", "LEASE", 600000)
			granted := from.waiting(l, key, choices...)
			run := func(s *server, words ...any) {
				if err := s.client.Do(ctx, words...).Err(); err != nil {
					t.Fatal(what, way, words, err)
				}
			}
			moved := slot(key)
			run(to, "CLUSTER", "SETSLOT", moved, "IMPORTING", id(from))
			run(from, "CLUSTER", "SETSLOT", moved, "MIGRATING", id(to))
			run(from, "MIGRATE", "127.0.0.1", to.port, key, 0, 5000)
			for _, s := range []*server{to, from, servers[2]} {
				run(s, "CLUSTER", "SETSLOT", moved, "NODE", id(to))
			}
			until(t, "it waits there", func() bool {
				waits, err := to.client.Do(ctx, "RLOCK.INFO", key).Result()
				return err == nil && field(waits, "queue-length") == int64(1)
			})
			begin := time.Now()
			run(to, "RLOCK.RELEASE", key, "somebody")
			hold := <-granted
			t.Log(what, way, "granted after", time.Since(begin))
			release(t, hold)
			if mode := to.mode(key); mode != "free" {
				t.Error(what, way, mode)
			}
		}
	}
}

func TestManyWaitsNeedFewConnections(t *testing.T) {
	s := start(t)
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: s.addr(), PoolSize: 4}))
	s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 600000)
	waiting, stop := context.WithCancel(ctx)
	var waits sync.WaitGroup
	defer func() {
		stop()
		waits.Wait()
	}()
	for range manyWaits {
		waits.Go(func() {
			if _, err := l.Lock(waiting, "busy"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	until(t, "they wait", func() bool { return s.waiters("busy") == manyWaits })
	count := strings.Count(s.client.ClientList(ctx).Val(), "id=") - 1
	if t.Log(count, " connections"); count > 5 {
		t.Error(count, " connections")
	}
	stop()
	waits.Wait()
	until(t, "nobody waits", func() bool { return s.waiters("busy") == 0 })
}

// Long before the next renewal: the server reports the loss. A hold whose context nobody uses is not observed.
func TestALossIsKnownAtOnce(t *testing.T) {
	s := start(t)
	l := s.locker()
	for what, lock := range map[string]func() (*Hold, error){
		"one":        func() (*Hold, error) { return l.Lock(ctx, "a", Lease(time.Minute)) },
		"no renewal": func() (*Hold, error) { return l.Lock(ctx, "a", Lease(time.Minute), NoRenewal()) },
		"a session":  func() (*Hold, error) { return l.Lock(ctx, "a", Lease(time.Minute), Session()) },
		"several":    func() (*Hold, error) { return l.All([]One{ReadKey("b"), Key("a")}).Lock(ctx, Lease(time.Minute)) },
	} {
		hold := must(t)(lock())
		lost := hold.Context().Done()
		until(t, "it is observed", func() bool { return info(t, s.client, "a", "observers") == int64(1) })
		begin := time.Now()
		s.client.Do(ctx, "RLOCK.FORCE", "a")
		select {
		case <-lost:
		case <-time.After(10 * time.Second):
			t.Fatal(what, ": not noticed")
		}
		t.Log(what, " ", time.Since(begin))
		if cause := context.Cause(hold.Context()); cause != ErrLost || !errors.Is(hold.Release(), ErrLost) {
			t.Error(what, cause)
		}
	}
	hold := must(t)(l.Lock(ctx, "a"))
	hold.Context()
	until(t, "it is observed", func() bool { return info(t, s.client, "a", "observers") == int64(1) })
	s.client.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
	until(t, "it is observed again", func() bool { return info(t, s.client, "a", "observers") == int64(1) })
	release(t, hold)
	if cause := context.Cause(hold.Context()); cause != ErrReleased || l.Counts().Lost != 4 {
		t.Error(cause, l.Counts())
	}
	reader := must(t)(l.Lock(ctx, "a", Read()))
	reader.Context()
	time.Sleep(3 * mayBeShort)
	if count := s.calls("rlock.await"); count < 5 || info(t, s.client, "a", "observers") != int64(0) {
		t.Error(count, " requests")
	}
	release(t, reader)
}

func TestWhoMayNotWaitIsToldSo(t *testing.T) {
	s := start(t)
	s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 600000)
	s.client.Do(ctx, "ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all")
	s.client.Do(ctx, "ACL", "SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-ssubscribe")
	for _, user := range []string{"deaf", "mute"} {
		l := newLocker(t, redis.NewClient(&redis.Options{Addr: s.addr(), Username: user, Password: "secret"}))
		hold := must(t)(l.Lock(ctx, "free", Wait(time.Second)))
		hold.Context()
		for way, choices := range ways {
			begin := time.Now()
			_, err := l.Lock(ctx, "busy", append(choices, Wait(20*time.Second))...)
			if !errors.Is(err, ErrNoPerm) || time.Since(begin) > 5*time.Second || !strings.Contains(err.Error(), "&rlock:tell:*") {
				t.Error(user, way, err, time.Since(begin))
			}
		}
		if !hold.IsHeld() { // its end is known by its renewals
			t.Error(user, context.Cause(hold.Context()))
		}
		release(t, hold)
	}
	old := typed(replyError("ERR syntax error at 'TELL': the syntax is RLOCK.ACQUIRE key owner"))
	if text := old.Error(); !strings.Contains(text, "too old for this package") || isPassing(old) {
		t.Error(text)
	}
}
