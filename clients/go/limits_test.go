package rlock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// Time limits of requests: with a slow server, and with user functions that take longer.

func TestOnlyAnswersTellHowLongAnAnswerTakes(t *testing.T) {
	s := start(t)
	servers := s.locker().servers
	ask := func() error {
		return servers.do(timeout(t, duration(machine.Reply)), "order", []any{"RLOCK.INFO", "order"}).Err()
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	s.signal(syscall.SIGSTOP)
	time.AfterFunc(800*time.Millisecond, func() { s.signal(syscall.SIGCONT) })
	if err := ask(); err != nil || servers.rtt.Load() < 80 {
		t.Error("a slow answer: ", servers.rtt.Load(), err)
	}
	if err := ask(); err != nil || servers.rtt.Load() > 50 {
		t.Error("a fast one after it: ", servers.rtt.Load(), err)
	}
	s.signal(syscall.SIGSTOP)
	before := servers.rtt.Load()
	servers.do(timeout(t, 800*time.Millisecond), "order", []any{"RLOCK.INFO", "order"})
	if rtt := servers.rtt.Load(); rtt != before {
		t.Error("what was not answered counts: ", rtt)
	}
}

func TestTheTimeoutsOfTheUsersClientDoNotCutRequests(t *testing.T) {
	s := start(t)
	short := 50 * time.Millisecond
	client := redis.NewClient(&redis.Options{Addr: s.addr(), ReadTimeout: short, WriteTimeout: short})
	l := newLocker(t, client)
	release(t, must(t)(l.Lock(ctx, "order")))
	s.signal(syscall.SIGSTOP)
	time.AfterFunc(500*time.Millisecond, func() { s.signal(syscall.SIGCONT) })
	release(t, must(t)(l.Lock(ctx, "order", Wait(5*time.Second))))
	if count := s.calls("rlock.acquire"); count != 2 {
		t.Error(count, " requests for two locks")
	}
}

// The server is silent when the subscription reconnects.
func TestCloseDoesNotWaitForAServer(t *testing.T) {
	s := start(t)
	s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 60000)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "mine"))
	waits := make(chan error, 1)
	go func() {
		_, err := l.Lock(ctx, "busy")
		waits <- err
	}()
	until(t, "it listens", func() bool { return s.listeners() == 1 && s.waiters("busy") == 1 })
	s.kill()
	silent, err := net.Listen("tcp", s.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	until(t, "it is being connected anew", func() bool { return len(l.servers.at("", nil).opens) == 1 })
	begin := time.Now()
	l.Close()
	<-hold.Context().Done()
	if took := time.Since(begin); took > 1500*time.Millisecond || !errors.Is(context.Cause(hold.Context()), ErrLost) {
		t.Error(took, context.Cause(hold.Context()))
	}
	if err := <-waits; !errors.Is(err, redis.ErrClosed) {
		t.Error(err)
	}
	until(t, "the subscription has ended", func() bool { return l.lineCount() == 0 })
}

// listeners returns how many channels are subscribed.
func (s *server) listeners() int { return len(s.client.PubSubShardChannels(ctx, "rlock:tell:*").Val()) }

func timeout(t testing.TB, after time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(ctx, after)
	t.Cleanup(cancel)
	return ctx
}

func TestAHoldEndsInTimeThoughAHookDoesNotReturn(t *testing.T) {
	s := start(t)
	free := make(chan struct{})
	defer close(free)
	l := s.withHook(func(command string, next func() error) error {
		if command == "rlock.renew" {
			<-free
		}
		return next()
	})
	begin := time.Now()
	hold := must(t)(l.Lock(ctx, "order", Lease(2*time.Second)))
	select {
	case <-hold.Context().Done():
	case <-time.After(5 * time.Second):
		t.Fatal("it goes on")
	}
	if took := time.Since(begin); took > 2*time.Second || !errors.Is(context.Cause(hold.Context()), ErrLost) {
		t.Error(took, context.Cause(hold.Context()))
	}
}

func TestASessionIsTiedAnewThoughAHookDoesNotReturn(t *testing.T) {
	s := durable(t)
	free := make(chan struct{})
	defer close(free)
	var stays atomic.Bool
	l := s.withHook(func(command string, next func() error) error {
		if command == "ping" && stays.CompareAndSwap(true, false) { // a connection of its own is opened
			<-free
		}
		return next()
	})
	hold := must(t)(l.Lock(ctx, "order", Session()))
	stays.Store(true)
	s.kill()
	s.again()
	until(t, "it is tied anew", func() bool { return !stays.Load() && hold.IsHeld() })
	release(t, hold)
}

// The reply to the release is held back until the server has said that there is nothing to extend.
func TestWhatFindsAHoldReleasedLosesNothing(t *testing.T) {
	s := start(t)
	for _, command := range []string{"rlock.renew", "rlock.check"} {
		asks, isReleased, isTold := make(chan bool), make(chan bool), make(chan bool)
		var once sync.Once
		l := s.withHook(func(asked string, next func() error) error {
			switch asked {
			case command:
				close(asks)
				<-isReleased
			case "rlock.release":
				err := next()
				once.Do(func() { close(isReleased) })
				<-isTold
				return err
			}
			return next()
		})
		hold := must(t)(l.Lock(ctx, "order"))
		go func() {
			defer close(isTold)
			if command == "rlock.renew" {
				if err := hold.Extend(ctx, time.Minute); !errors.Is(err, ErrReleased) || errors.Is(err, ErrLost) {
					t.Error(err)
				}
			} else if alive, err := hold.Valid(ctx); alive || err != nil {
				t.Error(alive, err)
			}
		}()
		<-asks
		release(t, hold)
		if cause := context.Cause(hold.Context()); cause != ErrReleased || l.Counts().Lost != 0 {
			t.Error(command, ": ", cause, l.Counts().Lost)
		}
	}
}
