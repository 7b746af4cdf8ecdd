package rlock

import (
	"context"
	"errors"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// durable starts a server that keeps its holds across restarts.
func durable(t *testing.T) *server { return start(t, "--appendonly", "yes", "--appendfsync", "always") }

func (l *Locker) lineCount() int {
	l.servers.mu.Lock()
	defer l.servers.mu.Unlock()
	return len(l.servers.lines)
}

func released(t *testing.T, hold *Hold) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- hold.Release() }()
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		t.Fatal("the release waits for the seat")
		return nil
	}
}

func TestASessionThatIsTiedAnewMayBeClosed(t *testing.T) {
	s := durable(t)
	middle := cut(t, s.addr())
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: middle.listener.Addr().String()}))
	hold := must(t)(l.Lock(ctx, "order", Session()))
	middle.ignores.Store(true)
	s.kill()
	s.again()
	until(t, "it is being tied", func() bool { return len(middle.late) > 0 })
	l.Close()
	if err := released(t, hold); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	until(t, "no connection is left", func() bool { return l.lineCount() == 0 })
}

func TestASeatThatComesAfterALossIsFreeAgain(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "order", Session()))
	l.Close()
	hold.tenure.sit(hold.tenure.machine)
	if err := released(t, hold); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
}

func TestASessionLeavesNothingBehind(t *testing.T) {
	s := durable(t)
	l := s.locker()
	cycle := func() { release(t, must(t)(l.Lock(ctx, "order", Session()))) }
	cycle()
	before := runtime.NumGoroutine()
	for range 30 {
		cycle()
	}
	until(t, "its goroutines have ended", func() bool { return runtime.NumGoroutine() < before+10 })

	hold := must(t)(l.Lock(ctx, "kept", Session()))
	for range 3 {
		s.kill()
		until(t, "the break is noticed", func() bool { return !hold.IsHeld() })
		s.again()
		until(t, "it is tied anew", hold.IsHeld)
	}
	if count := l.lineCount(); count != 1 {
		t.Error(count, " connections for one session")
	}
	release(t, hold)
}

// The reply is late, or the request is: the server may execute it after the owner's next request.
func TestNobodyOvertakesARequestThatWasToTieASession(t *testing.T) {
	s := durable(t)
	middle := cut(t, s.addr())
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: middle.listener.Addr().String()}))
	hold := must(t)(l.Lock(ctx, "order", Session(), Owner("ann")))
	middle.ignores.Store(true)
	s.kill()
	s.again()
	pass := <-middle.late
	<-hold.Context().Done()
	if _, err := l.Lock(ctx, "order", Owner("ann"), Wait(250*time.Millisecond)); !errors.Is(err, ErrUnavailable) {
		t.Error("it is overtaken: ", err)
	}
	pass()
	again := must(t)(l.Lock(ctx, "order", Owner("ann"), Wait(10*time.Second)))
	if isValid, err := again.Valid(ctx); !isValid || again.Token() <= hold.Token() {
		t.Error(isValid, err, again.Token(), hold.Token())
	}
	if err := released(t, hold); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	release(t, again)
	if mode := s.mode("order"); mode != "free" {
		t.Error(mode)
	}
}

// The server keeps such a session until it notices that the connection is closed: until then, the owner would re-enter
// the hold, and lose it afterward.
func TestASessionLostByItsDeadlineIsUndoneBeforeItsOwnerAsksAgain(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "order", Owner("ann"), Session(), Lease(time.Second)))
	s.signal(syscall.SIGSTOP)
	until(t, "it is lost", func() bool { return !hold.IsHeld() && context.Cause(hold.Context()) == ErrLost })
	until(t, "its seat is undone", func() bool { return len(hold.tenure.seat.turn) == 1 })
	s.signal(syscall.SIGCONT)
	again := must(t)(l.Lock(ctx, "order", Owner("ann"), Wait(10*time.Second)))
	if again.Token() == hold.Token() {
		t.Fatal("it has entered what its connection ends: ", again.Token())
	}
	release(t, again)
	if err := released(t, hold); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
}
