package rlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

func TestOneAtATimeByManyGoroutines(t *testing.T) {
	s := start(t)
	l := s.locker()
	var count, inside atomic.Int64
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for range 10 {
				hold, err := l.Lock(ctx, "counter", Wait(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two at once")
				}
				count.Add(1)
				inside.Add(-1)
				release(t, hold)
			}
		})
	}
	workers.Wait()
	if count.Load() != 200 || s.mode("counter") != "free" || s.waiters("counter") != 0 {
		t.Fatal(count.Load(), s.mode("counter"), s.waiters("counter"))
	}
}

func TestAServerWithoutTheModuleIsSaidToBeOne(t *testing.T) {
	s := bare(t)
	_, err := s.locker().Lock(ctx, "order")
	if err == nil || !strings.HasPrefix(err.Error(), "rlock: the server has not loaded the RLOCK module: ERR unknown command") {
		t.Fatal(err)
	}
}

func TestTheHoldDoesNotEndWithTheContextThatAcquiredIt(t *testing.T) {
	s := start(t)
	acquiring, cancel := context.WithTimeout(ctx, 5*time.Second)
	hold := must(t)(s.locker().Lock(acquiring, "own", Lease(2*time.Second)))
	cancel()
	end := hold.Deadline()
	until(t, "it is renewed beyond its lease", func() bool { return time.Now().After(end) && hold.Deadline().After(end) })
	if hold.Context().Err() != nil || !hold.IsHeld() || s.mode("own") != "write" {
		t.Fatal(context.Cause(hold.Context()), s.mode("own"))
	}
	release(t, hold)
	if cause := context.Cause(hold.Context()); cause != ErrReleased || hold.IsHeld() {
		t.Fatal(cause)
	}
	if err := hold.Release(); err != ErrReleased {
		t.Fatal(err)
	}
}

func TestReadersShareAndAnOwnerReenters(t *testing.T) {
	s := start(t)
	l := s.locker()
	one := must(t)(l.Lock(ctx, "page", Read()))
	two := must(t)(l.Lock(ctx, "page", Read()))
	if two.Token() <= one.Token() {
		t.Fatal(one.Token(), two.Token())
	}
	if _, err := l.TryLock(ctx, "page"); !errors.Is(err, ErrNotAcquired) {
		t.Fatal(err)
	}
	release(t, one)
	release(t, two)

	// One owner in two Lockers of this process: the depth is counted for both together.
	other := s.locker()
	outer := must(t)(l.Lock(ctx, "deep", Owner("ann")))
	inner := must(t)(other.Lock(ctx, "deep", Owner("ann")))
	if outer.Token() != inner.Token() {
		t.Fatal("another hold")
	}
	release(t, outer)
	if _, err := l.TryLock(ctx, "deep"); !errors.Is(err, ErrNotAcquired) {
		t.Fatal("the inner level is held: ", err)
	}
	release(t, inner)
	if s.mode("deep") != "free" {
		t.Fatal(s.mode("deep"))
	}

	reading := must(t)(l.Lock(ctx, "up", Read(), Owner("bob")))
	if _, err := l.Lock(ctx, "up", Owner("bob")); !errors.Is(err, ErrDeadlock) {
		t.Fatal(err)
	}
	release(t, must(t)(l.Lock(ctx, "up", Owner("bob"), Upgrade())))
	release(t, reading)
}

// The depth of an owner's hold is known to every request that has the seat.
func TestOneOwnerByManyGoroutines(t *testing.T) {
	s := start(t)
	l := s.locker()
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 100 {
				hold, err := l.Lock(ctx, "order", Owner("ann"), Wait(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				release(t, hold)
			}
		})
	}
	workers.Wait()
	if mode := s.mode("order"); mode != "free" {
		t.Fatal(mode)
	}
}

func TestAWaitEndsInTime(t *testing.T) {
	s := start(t)
	for _, choices := range ways {
		l := s.locker()
		hold := must(t)(l.Lock(ctx, "busy"))
		begin := time.Now()
		_, err := l.Lock(ctx, "busy", append(choices, Wait(300*time.Millisecond))...)
		if took := time.Since(begin); !errors.Is(err, ErrNotAcquired) || took < 290*time.Millisecond || took > 5*time.Second {
			t.Fatal(err, took)
		}
		bounded, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		if _, err = l.Lock(bounded, "busy", choices...); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		if s.waiters("busy") != 0 {
			t.Fatal("somebody still waits")
		}
		release(t, hold)
	}
}

func TestACancelledWaitLeavesNothing(t *testing.T) {
	s := start(t)
	l := s.locker()
	var wait sync.WaitGroup
	var granted atomic.Int64
	for i := range 12 {
		wait.Go(func() {
			for j := range 25 {
				// Some waits end at the moment of their grant: the lock changes hands all the time.
				cancelling, cancel := context.WithCancel(ctx)
				time.AfterFunc(time.Duration((i*7+j*3)%20)*time.Millisecond, cancel)
				hold, err := l.Lock(cancelling, "given-up")
				switch {
				case err == nil:
					granted.Add(1)
					time.Sleep(time.Millisecond)
					release(t, hold)
				case !errors.Is(err, context.Canceled):
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	// No lease could have ended by itself meanwhile.
	until(t, "nothing is left", func() bool { return s.waiters("given-up") == 0 && s.mode("given-up") == "free" })
	t.Log(granted.Load(), "of 300 were granted")
	hold := must(t)(l.Lock(ctx, "given-up"))
	cancelling, cancel := context.WithCancelCause(ctx)
	time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("enough")) })
	begin := time.Now()
	if _, err := l.Lock(cancelling, "given-up"); err == nil || err.Error() != "enough" || time.Since(begin) > 5*time.Second {
		t.Fatal(err, time.Since(begin))
	}
	until(t, "it waits no more", func() bool { return s.waiters("given-up") == 0 })
	release(t, hold)
}

func TestALossIsSaidBeforeItIsOne(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "lost", Lease(900*time.Millisecond)))
	s.client.Do(ctx, "RLOCK.FORCE", "lost")
	select {
	case <-hold.Context().Done():
	case <-time.After(10 * time.Second):
		t.Fatal("not noticed")
	}
	if context.Cause(hold.Context()) != ErrLost || !errors.Is(hold.Release(), ErrLost) {
		t.Fatal(context.Cause(hold.Context()))
	}

	hold = must(t)(l.Lock(ctx, "silent", Lease(1200*time.Millisecond)))
	s.signal(syscall.SIGSTOP)
	<-hold.Context().Done()
	if left := time.Until(hold.Deadline()); left < 0 || context.Cause(hold.Context()) != ErrLost {
		t.Fatal("late: ", left)
	}
	s.signal(syscall.SIGCONT)
	if err := hold.Release(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	until(t, "it is free", func() bool { return s.mode("silent") == "free" })
}

func TestAnAnswerThatWasLostIsMadeUpFor(t *testing.T) {
	s := start(t)
	c := cut(t, s.addr())
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: c.listener.Addr().String()}))
	for range 10 {
		c.eat <- struct{}{}
		hold := must(t)(l.Lock(ctx, "cut", Wait(10*time.Second), Owner("ann")))
		if depth := s.client.Do(ctx, "RLOCK.HOLDS", "cut", "ann").Val(); depth != int64(1) {
			t.Fatal(depth)
		}
		c.eat <- struct{}{}
		release(t, hold)
		if s.mode("cut") != "free" {
			t.Fatal(s.mode("cut"))
		}
	}
	if len(c.eat) != 0 {
		t.Fatal("nothing was cut")
	}
	// The reply to the last attempt is lost as well: an unheard grant must be released.
	for range 100 {
		c.eat <- struct{}{}
	}
	if _, err := l.Lock(ctx, "cut", Wait(300*time.Millisecond)); err == nil {
		t.Fatal("an answer that nobody gave")
	}
	for len(c.eat) > 0 {
		select {
		case <-c.eat:
		default:
		}
	}
	until(t, "it was given back", func() bool { return s.mode("cut") == "free" })
}

func TestErrorsHaveTypes(t *testing.T) {
	s := start(t)
	l := s.locker()
	ann, bob := must(t)(l.Lock(ctx, "left", Owner("ann"))), must(t)(l.Lock(ctx, "right", Owner("bob")))
	waits := make(chan error)
	go func() {
		hold, err := l.Lock(ctx, "left", Owner("bob"))
		if err == nil {
			err = hold.Release()
		}
		waits <- err
	}()
	until(t, "bob waits", func() bool { return s.waiters("left") == 1 })
	if _, err := l.Lock(ctx, "right", Owner("ann")); !errors.Is(err, ErrDeadlock) {
		t.Fatal(err)
	}
	release(t, ann)
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	release(t, bob)

	s.client.Do(ctx, "ACL", "SETUSER", "guest", "on", ">secret", "~app:*", "&*", "+@all")
	guest := newLocker(t, redis.NewClient(&redis.Options{Addr: s.addr(), Username: "guest", Password: "secret"}))
	if _, err := guest.Lock(ctx, "theirs"); !errors.Is(err, ErrNoPerm) {
		t.Fatal(err)
	}
	release(t, must(t)(guest.Lock(ctx, "app:ours")))
	s.client.ConfigSet(ctx, "rlock.max-tells", "1")
	hold := must(t)(l.Lock(ctx, "few"))
	only, cancel := context.WithCancel(ctx)
	go func() {
		_, err := l.Lock(only, "few")
		waits <- err
	}()
	until(t, "one waits", func() bool { return s.waiters("few") == 1 })
	if _, err := l.Lock(ctx, "few"); !errors.Is(err, ErrTooMany) {
		t.Fatal(err)
	}
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	release(t, hold)
	if _, err := New(redis.NewRing(&redis.RingOptions{})); err == nil {
		t.Fatal("a ring has no primary for a key that all agree on")
	}
}

func TestASessionEndsWithItsConnection(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "tied", Session(), Lease(3*time.Second)))
	waits := make(chan *Hold)
	go func() { waits <- must(t)(s.locker().Lock(ctx, "tied", Session())) }()
	until(t, "the next one waits", func() bool { return s.waiters("tied") == 1 })
	holders := info(t, s.client, "tied", "holders").([]any)
	id := holders[0].(map[any]any)["session"]
	begin := time.Now()
	s.client.Do(ctx, "CLIENT", "KILL", "ID", id)
	next := <-waits
	<-hold.Context().Done()
	if took := time.Since(begin); took > 900*time.Millisecond || !errors.Is(hold.Release(), ErrLost) {
		t.Fatal(took)
	}
	release(t, next)
	for range 5 { // the connection goes back, and is used again
		release(t, must(t)(l.Lock(ctx, "tied", Session())))
	}
	if idle := len(l.servers.at("", nil).idle); idle != 1 {
		t.Fatal(idle)
	}
}

func TestASyncLocker(t *testing.T) {
	s := start(t)
	l := s.locker()
	var workers sync.WaitGroup
	rw := l.RWMutex("rw")
	locks := []sync.Locker{l.Mutex("m"), rw, rw.RLocker()}
	for i, lock := range locks {
		var inside atomic.Int64
		for range 8 {
			workers.Go(func() {
				lock.Lock()
				defer lock.Unlock()
				if inside.Add(1) > 1 && i < 2 {
					t.Error("two at once")
				}
				inside.Add(-1)
			})
		}
	}
	workers.Wait()
	mutex := l.Mutex("m")
	if !mutex.TryLock() || mutex.TryLock() || mutex.Hold() == nil {
		t.Fatal("it was free, and then it was not")
	}
	mutex.Unlock()
	defer func() {
		if recover() == nil {
			t.Fatal("an unlock of nothing")
		}
	}()
	mutex.Unlock()
}

// A holder that lost a mutex must not release the next holder's lock, whether the loss is known here or not.
func TestUnlockOfALostMutexLeavesItToTheNextHolder(t *testing.T) {
	s := start(t)
	l := s.locker()
	for _, isKnown := range []bool{true, false} {
		mutex := l.Mutex("order")
		mutex.Lock()
		lost := mutex.Hold()
		s.client.Do(ctx, "RLOCK.RELEASE", "order", lost.Owner())
		if isKnown {
			if alive, err := lost.Valid(ctx); alive || err != nil {
				t.Fatal(alive, err)
			}
		}
		mutex.Lock()
		live := mutex.Hold()
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, ErrLost) {
					t.Error("who lost it is told ", err)
				}
			}()
			mutex.Unlock()
		}()
		if _, err := l.TryLock(ctx, "order"); !errors.Is(err, ErrNotAcquired) || !live.IsHeld() || mutex.Hold() != live {
			t.Fatal("the next holder has it no longer: ", err)
		}
		mutex.Unlock()
	}
}

func TestAHoldIsRenewedByTheLongestLeaseOfItsLevels(t *testing.T) {
	s := start(t)
	l := s.locker()
	var levels sync.WaitGroup
	for key, outer := range map[string][]Option{"unrenewed": {Lease(time.Second), NoRenewal()}, "short": {Lease(600 * time.Millisecond)}} {
		levels.Go(func() {
			below := must(t)(l.Lock(ctx, key, append(outer, Owner("ann"))...))
			above := must(t)(l.Lock(ctx, key, Owner("ann"), Lease(3*time.Second)))
			end := above.Deadline().Add(500 * time.Millisecond)
			until(t, "it is renewed beyond its lease", func() bool { return time.Now().After(end) || !below.IsHeld() })
			if left := time.Until(below.Deadline()); left < 1500*time.Millisecond || !below.IsHeld() {
				t.Error(key, ": held for ", left)
			}
			release(t, above)
			release(t, below)
		})
	}
	levels.Wait()
}

func TestAWaitMayTakeLongerThanTheServerBlocks(t *testing.T) {
	s := start(t)
	month, cancel := context.WithTimeout(ctx, 30*24*time.Hour)
	defer cancel()
	for what, choices := range ways {
		l := s.locker()
		for _, wait := range []func() (*Hold, error){
			func() (*Hold, error) { return l.Lock(ctx, "busy", append(choices, Wait(8*24*time.Hour))...) },
			func() (*Hold, error) { return l.Lock(ctx, "busy", append(choices, Wait(math.MaxInt64))...) },
			func() (*Hold, error) { return l.Lock(month, "busy", choices...) },
			func() (*Hold, error) { return l.All([]One{Key("busy"), Key("free")}).Lock(month) },
		} {
			hold := must(t)(l.Lock(ctx, "busy"))
			waits := make(chan error, 1)
			go func() {
				next, err := wait()
				if err == nil {
					err = next.Release()
				}
				waits <- err
			}()
			until(t, "it waits", func() bool { return s.waiters("busy") == 1 || len(waits) == 1 })
			release(t, hold)
			if err := <-waits; err != nil {
				t.Error(what, err)
			}
		}
	}
}

func TestALeaseAndAWaitMayTakeLongerThanAnHour(t *testing.T) {
	s := start(t)
	hold := must(t)(s.locker().Lock(ctx, "day", Lease(24*time.Hour)))
	if left := time.Until(hold.Deadline()); left < 23*time.Hour || left > 24*time.Hour {
		t.Error(left)
	}
	release(t, hold)
	for _, wait := range []machine.Ms{millis(3 * time.Hour), machine.Forever} {
		if left := remaining(machine.After(now(), wait)); left < 2*time.Hour {
			t.Error("the owner's own seat is waited for ", left)
		}
	}
}
