package rlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestAReleaseEndsWithItsContext(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "order"))
	ended, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("enough"))
	if err := hold.ReleaseContext(ended); err != nil || s.mode("order") != "free" {
		t.Error("a server that answers is asked although the context has ended: ", err)
	}
	if err := hold.ReleaseContext(ctx); err != ErrReleased {
		t.Error(err)
	}
	held := []*Hold{must(t)(l.Lock(ctx, "order")), must(t)(l.Lock(ctx, "named", Owner("ann"))),
		must(t)(l.Lock(ctx, "session", Session())), must(t)(l.All([]One{Key("a"), Key("b")}).Lock(ctx))}
	s.signal(syscall.SIGSTOP)
	for _, hold := range held {
		for _, by := range []context.Context{timeout(t, 300*time.Millisecond)} {
			begin := time.Now()
			err := hold.ReleaseContext(by)
			took := time.Since(begin)
			if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || took < 250*time.Millisecond || took > 2*time.Second {
				t.Error(hold.Keys(), err, took)
			}
			if hold.IsHeld() || context.Cause(hold.Context()) != ErrReleased {
				t.Error(hold.Keys(), context.Cause(hold.Context()))
			}
		}
	}
	s.signal(syscall.SIGCONT)
	for _, hold := range held { // behind it, long before a lease has passed
		for _, key := range hold.Keys() {
			until(t, key+" is released", func() bool { return s.mode(key) == "free" })
		}
	}
}

// When the caller of Do has given up, Do does not wait for a whole lease.
func TestDoEndsSoonAfterItsContext(t *testing.T) {
	s := start(t)
	l := s.locker()
	working, cancel := context.WithCancel(ctx)
	begin := time.Now()
	err := l.Do(working, "order", func(ctx context.Context, _ *Hold) error {
		s.signal(syscall.SIGSTOP)
		cancel()
		return ctx.Err()
	})
	if took := time.Since(begin); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnavailable) || took > 10*time.Second {
		t.Error(err, took)
	}
	s.signal(syscall.SIGCONT)
	until(t, "it is released", func() bool { return s.mode("order") == "free" })
}

// However the work ends, that outcome is kept, even if the release fails as well.
func TestAnErrorOfTheReleaseReplacesNothing(t *testing.T) {
	s := start(t)
	l := s.locker()
	lose := func(hold *Hold) { s.client.Do(ctx, "RLOCK.FORCE", hold.Key()) }
	mine := errors.New("mine")
	said := warnings(t)
	t.Run("Do, an error", func(t *testing.T) {
		err := l.Do(ctx, "order", func(_ context.Context, hold *Hold) error {
			lose(hold)
			return mine
		})
		if !errors.Is(err, mine) || !errors.Is(err, ErrLost) || !strings.HasPrefix(err.Error(), "mine\n") {
			t.Error(err)
		}
	})
	t.Run("Do, the end of the context", func(t *testing.T) {
		ending, cancel := context.WithCancelCause(ctx)
		err := l.Do(ending, "order", func(ctx context.Context, hold *Hold) error {
			lose(hold)
			cancel(mine)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, mine) || !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
	t.Run("Do, nothing", func(t *testing.T) {
		if err := l.Do(ctx, "order", func(_ context.Context, hold *Hold) error { lose(hold); return nil }); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
	panics := func(t *testing.T, what string, call func()) {
		t.Run(what+", a panic", func(t *testing.T) {
			defer func() {
				if problem := recover(); problem != mine {
					t.Error(problem)
				}
			}()
			call()
		})
	}
	panics(t, "Do", func() {
		l.Do(ctx, "order", func(_ context.Context, hold *Hold) error { lose(hold); panic(mine) })
	})
	for what, lock := range map[string]interface {
		sync.Locker
		Hold() *Hold
	}{
		"Mutex": l.Mutex("order"), "RWMutex": writer{l.RWMutex("order")}, "RLocker": l.RWMutex("order").read, "RUnlock": reader{l.RWMutex("order")},
	} {
		panics(t, what, func() {
			lock.Lock()
			defer unlock(lock)()
			lose(lock.Hold())
			panic(mine)
		})
	}
	panics(t, "a mutex that is not locked", func() {
		defer l.Mutex("free").Unlock()
		panic(mine)
	})
	panics(t, "a hold", func() {
		hold := must(t)(l.Lock(ctx, "order"))
		defer hold.Release()
		lose(hold)
		panic(mine)
	})
	t.Run("Do, the end of the goroutine", func(t *testing.T) {
		isOver, went := make(chan struct{}), true
		go func() {
			defer close(isOver)
			l.Do(ctx, "order", func(_ context.Context, hold *Hold) error {
				lose(hold)
				went = false
				runtime.Goexit()
				return nil
			})
			went = true
		}()
		<-isOver
		if went {
			t.Error("it went on")
		}
	})
	// Nor is it hidden.
	if count := strings.Count(said.String(), "the hold was lost"); count < 6 {
		t.Error(count, said)
	}
	if mode := s.mode("order"); mode != "free" {
		t.Error(mode)
	}
}

type writer struct{ *RWMutex }

func (w writer) Hold() *Hold { return w.write.Hold() }

type reader struct{ *RWMutex }

func (r reader) Hold() *Hold { return r.read.Hold() }
func (r reader) Lock()       { r.RLock() }
func (r reader) Unlock()     { r.RUnlock() }

// unlock returns the method itself, which is what users defer: only then can it see a panic.
func unlock(lock sync.Locker) func() {
	switch lock := lock.(type) {
	case writer:
		return lock.RWMutex.Unlock
	case reader:
		return lock.RWMutex.RUnlock
	}
	return lock.Unlock
}

// "At most once a second": the lease is left to expire, and nobody releases.
func TestForgottenHoldsThatAreLostTakeNoMemory(t *testing.T) {
	s := start(t)
	l := s.locker()
	forget := func(round int) {
		for i := range 200 {
			must(t)(l.Lock(ctx, fmt.Sprint("cooldown:", round, "-", i), Lease(50*time.Millisecond), NoRenewal(), Owner("api")))
		}
		must(t)(l.All([]One{Key("{c}a" + fmt.Sprint(round)), Key("{c}b")}, Lease(50*time.Millisecond), NoRenewal(), Owner("api")).Lock(ctx))
		level := must(t)(l.Lock(ctx, fmt.Sprint("twice:", round), Lease(50*time.Millisecond), NoRenewal(), Owner("api")))
		again, err := l.TryLock(ctx, level.Key(), Lease(50*time.Millisecond), NoRenewal(), Owner("api"))
		if err == nil {
			_ = again.Release()
		}
	}
	for round := range 3 {
		forget(round)
		until(t, "they are forgotten", func() bool {
			runtime.GC()
			seats.Lock()
			defer seats.Unlock()
			count := 0
			for id := range seats.of {
				if id.owner == "api" {
					count++
				}
			}
			return count == 0
		})
	}
	// A hold that is alive, or that somebody may still release, is not forgotten.
	kept := must(t)(l.Lock(ctx, "kept", Owner("api"), Lease(50*time.Millisecond), NoRenewal()))
	must(t)(l.Lock(ctx, "renewed", Owner("api")))
	<-kept.Context().Done()
	for range 5 {
		runtime.GC()
	}
	again := must(t)(l.Lock(ctx, "kept", Owner("api")))
	if err := kept.Release(); !errors.Is(err, ErrLost) || !again.IsHeld() || s.mode("kept") != "write" {
		t.Error(err)
	}
	release(t, again)
	inner := must(t)(l.Lock(ctx, "renewed", Owner("api")))
	release(t, inner)
	if depth := s.client.Do(ctx, "RLOCK.HOLDS", "renewed", "api").Val(); depth != int64(1) {
		t.Error(depth)
	}
}

// After a pause, the server seems slow to the next wait, which must end in time nevertheless.
func TestAWaitDoesNotEndEarlyAfterAPause(t *testing.T) {
	s := start(t)
	l := s.locker()
	s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 60000)
	for what, wait := range map[string]func() error{
		"a wait":    func() error { return errorOf(l.Lock(ctx, "busy", Wait(2*time.Second))) },
		"a context": func() error { return errorOf(l.Lock(timeout(t, 2*time.Second), "busy")) },
		"a session": func() error { return errorOf(l.Lock(ctx, "busy", Session(), Wait(2*time.Second))) },
		"several":   func() error { return errorOf(l.All([]One{Key("busy"), Key("free")}).Lock(ctx, Wait(2*time.Second))) },
	} {
		release(t, must(t)(l.Lock(ctx, "order"))) // it is near
		s.signal(syscall.SIGSTOP)
		time.AfterFunc(1500*time.Millisecond, func() { s.signal(syscall.SIGCONT) })
		if what == "a session" { // the first request of this wait has no reply to measure
			must(t)(l.Lock(ctx, "measure")).Release()
		}
		begin := time.Now()
		err := wait()
		took := time.Since(begin)
		if took < 1990*time.Millisecond || took > 4*time.Second || !(errors.Is(err, ErrNotAcquired) || errors.Is(err, context.DeadlineExceeded)) {
			t.Error(what, ": ", err, took)
		}
		if what == "a context" && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(what, ": ", err)
		}
	}
	// The server itself ends each wait early.
	s.client.ConfigSet(ctx, "rlock.max-tell-ms", "1000")
	begin := time.Now()
	if err := errorOf(l.Lock(ctx, "busy", Wait(2500*time.Millisecond))); !errors.Is(err, ErrNotAcquired) || time.Since(begin) < 2490*time.Millisecond {
		t.Error(err, time.Since(begin))
	}
	// A wait that is canceled still ends early.
	waiting, stop := context.WithCancel(ctx)
	waits := make(chan error, 1)
	go func() { waits <- errorOf(l.Lock(waiting, "busy")) }()
	until(t, "it waits", func() bool { return s.waiters("busy") == 1 })
	begin = time.Now()
	if err := errorOf(l.Lock(ctx, "busy", Wait(time.Minute), MaxQueue(1))); !errors.Is(err, ErrNotAcquired) || time.Since(begin) > 10*time.Second {
		t.Error(err, time.Since(begin))
	}
	stop()
	if err := <-waits; !errors.Is(err, context.Canceled) || s.waiters("busy") != 0 {
		t.Error(err, s.waiters("busy"))
	}
}

// Nobody answers: the only trouble to report is that there is no answer.
func TestAWarningNamesTheTrouble(t *testing.T) {
	s := start(t)
	free := make(chan struct{})
	defer close(free)
	stuck := s.withHook(func(command string, next func() error) error {
		if command == "rlock.acquire" {
			<-free
		}
		return next()
	})
	used := func() *Locker { // each warns once in a while
		l := s.locker()
		release(t, must(t)(l.Lock(ctx, "order")))
		return l
	}
	plain, named, session := used(), used(), used()
	said := warnings(t)
	s.signal(syscall.SIGSTOP)
	var waits sync.WaitGroup
	wait := func(what string, l *Locker, choices ...Option) {
		waits.Go(func() {
			// If the context may end, the request runs in another goroutine, which a hook may block forever.
			_, err := l.Lock(timeout(t, time.Minute), what, append(choices, Wait(6*time.Second))...)
			if !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "nil") {
				t.Error(what, err)
			}
		})
	}
	wait("plain", plain)
	wait("named", named, Owner("ann"))
	wait("session", session, Session())
	wait("stuck", stuck)
	waits.Wait()
	if text := said.String(); strings.Contains(text, "<nil>") || strings.Count(text, "still waiting; last error: ") != 4 {
		t.Error(text)
	}
}
