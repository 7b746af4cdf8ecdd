package rlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// notes is a listener that records all events.
type notes struct {
	mu     sync.Mutex
	events []Event
	names  []string
	values []any
}

func (n *notes) note(what string, event Event, value any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names, n.events, n.values = append(n.names, what+" "+event.Key), append(n.events, event), append(n.values, value)
}

func (n *notes) Waited(ctx context.Context, event Event) {
	n.note("waited", event, ctx.Value(callers{}))
}
func (n *notes) Held(event Event) { n.note("held", event, nil) }
func (n *notes) Lost(event Event) { n.note("lost", event, nil) }

func (n *notes) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.names)
}

type callers struct{}

func TestAListenerIsInformedOfWaitsHoldsAndLosses(t *testing.T) {
	s, n := start(t), &notes{}
	l := s.locker(Listen(n))
	hold := must(t)(l.Lock(context.WithValue(ctx, callers{}, "a request"), "a"))
	if counts := l.Counts(); counts != (Counts{Held: 1}) {
		t.Errorf("%+v", counts)
	}
	waits := make(chan error)
	go func() {
		_, err := l.Lock(ctx, "a", Wait(500*time.Millisecond))
		waits <- err
	}()
	until(t, "it waits", func() bool { return l.Counts().Waiting == 1 })
	if err := <-waits; !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
	release(t, hold)
	lost := must(t)(l.Lock(ctx, "b", Lease(1500*time.Millisecond)))
	s.client.Do(ctx, "RLOCK.FORCE", "b")
	until(t, "it is lost", func() bool { return !lost.IsHeld() }) // nobody has asked for its context: a renewal finds that
	release(t, must(t)(l.All([]One{Key("c"), Key("d")}).Lock(ctx)))
	until(t, "all is told", func() bool { return n.count() == 7 })
	if wanted := []string{"waited a", "waited a", "held a", "waited b", "lost b", "waited c, d", "held c, d"}; !slices.Equal(n.names, wanted) {
		t.Error(n.names)
	}
	if n.values[0] != "a request" || n.values[1] != nil || !errors.Is(n.events[1].Err, ErrNotAcquired) || n.events[0].Err != nil {
		t.Error(n.values, n.events[:2])
	}
	if took := n.events[1].Took; took < 450*time.Millisecond || took > n.events[2].Took || time.Since(n.events[2].At) > time.Minute {
		t.Error(n.events)
	}
	if counts := l.Counts(); counts != (Counts{Lost: 1, FailedRenewals: 1}) { // the renewal that was refused
		t.Errorf("%+v", counts)
	}
}

func TestRenewalsThatFailAreCounted(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "a", Lease(1500*time.Millisecond)))
	s.kill()
	<-hold.Context().Done()
	if counts := l.Counts(); counts.FailedRenewals == 0 || counts.Lost != 1 || counts.Held != 0 {
		t.Errorf("%+v", counts)
	}
}

type failing struct{ notes }

func (f *failing) Waited(_ context.Context, event Event) {
	f.note("waited", event, nil)
	if f.count()%4 == 1 {
		runtime.Goexit()
	}
	panic("a mistake")
}

func TestAListenerThatPanicsStopsNothing(t *testing.T) {
	f := &failing{}
	l := start(t).locker(Listen(f))
	for range 6 {
		release(t, must(t)(l.Lock(ctx, "a")))
	}
	until(t, "all is told", func() bool { return f.count() == 12 && l.Counts().Unreported == 6 })
}

type stuck struct {
	notes
	free chan bool
}

func (s *stuck) Waited(context.Context, Event) { <-s.free }

func TestAListenerThatHangsDelaysNothing(t *testing.T) {
	stuck := &stuck{free: make(chan bool)}
	s := start(t)
	l := s.locker(Listen(stuck))
	defer close(stuck.free)
	for range mostUntold {
		release(t, must(t)(l.Lock(ctx, "a", Wait(time.Second))))
	}
	lost := must(t)(l.Lock(ctx, "b", Lease(1500*time.Millisecond)))
	s.client.Do(ctx, "RLOCK.FORCE", "b")
	select {
	case <-lost.Context().Done():
	case <-time.After(5 * time.Second):
		t.Error("the loss was not reported")
	}
	until(t, "it is counted no longer", func() bool { return l.Counts().Held == 0 })
	// The listener has one event, and mostUntold wait for it: the same number of others is dropped.
	if counts := l.Counts(); counts.Unreported != mostUntold+1 || counts.Waiting != 0 {
		t.Errorf("%+v", counts)
	}
	begin := time.Now()
	l.Close()
	if took := time.Since(begin); took > time.Second {
		t.Error("Close took", took)
	}
}

func TestAHoldIsExtended(t *testing.T) {
	s := start(t)
	l := s.locker()
	for _, lock := range []func() (*Hold, error){
		func() (*Hold, error) { return l.Lock(ctx, "a", Lease(2*time.Second), NoRenewal()) },
		func() (*Hold, error) {
			return l.All([]One{Key("a"), ReadKey("b")}).Lock(ctx, Lease(2*time.Second), NoRenewal())
		},
	} {
		hold := must(t)(lock())
		if err := hold.Extend(ctx, time.Minute); err != nil || time.Until(hold.Deadline()) < 50*time.Second {
			t.Error(err, hold.Deadline())
		}
		if left := s.client.PTTL(ctx, "a").Val(); left < 50*time.Second {
			t.Error("the server says", left)
		}
		if err := hold.Extend(ctx, time.Second); err != nil || time.Until(hold.Deadline()) < 50*time.Second {
			t.Error("it was shortened:", err, hold.Deadline())
		}
		if valid, err := hold.Valid(ctx); !valid || err != nil {
			t.Error(valid, err)
		}
		release(t, hold)
		if err := hold.Extend(ctx, time.Minute); !errors.Is(err, ErrReleased) {
			t.Error(err)
		}
		if valid, err := hold.Valid(ctx); valid || err != nil {
			t.Error(valid, err)
		}
	}
}

func TestAHoldThatIsNotRenewedEnds(t *testing.T) {
	s := start(t)
	hold := must(t)(s.locker().Lock(ctx, "a", Lease(time.Second), NoRenewal()))
	<-hold.Context().Done()
	if err := hold.Extend(ctx, time.Minute); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	until(t, "the server has ended it", func() bool { return s.client.Exists(ctx, "a").Val() == 0 })
	if renewals := s.calls("rlock.renew"); renewals != 0 {
		t.Error(renewals, "renewals")
	}
}

func TestAHoldThatTheServerHasEndedIsNotValidAndNotExtended(t *testing.T) {
	s := start(t)
	l := s.locker()
	for _, asks := range []func(*Hold) error{
		func(hold *Hold) error {
			if valid, err := hold.Valid(ctx); valid || err != nil {
				t.Error(valid, err)
			}
			return ErrLost
		},
		func(hold *Hold) error { return hold.Extend(ctx, time.Minute) },
	} {
		hold := must(t)(l.Lock(ctx, "a"))
		s.client.Do(ctx, "RLOCK.FORCE", "a")
		if err := asks(hold); !errors.Is(err, ErrLost) || hold.IsHeld() {
			t.Error(err, hold.IsHeld())
		}
		<-hold.Context().Done()
		if cause := context.Cause(hold.Context()); cause != ErrLost {
			t.Error(cause)
		}
	}
}

func TestExtendGivesUpWithItsContextAndWithTheServer(t *testing.T) {
	s := start(t)
	hold := must(t)(s.locker().Lock(ctx, "a"))
	s.kill()
	brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := hold.Extend(brief, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := hold.Extend(ctx, time.Minute); !errors.Is(err, ErrUnavailable) || !hold.IsHeld() {
		t.Error(err, hold.IsHeld())
	}
	if valid, err := hold.Valid(ctx); valid || !errors.Is(err, ErrUnavailable) {
		t.Error(valid, err)
	}
}

// seen is a user's hook.
type seen struct {
	mu    sync.Mutex
	names map[string]int
}

func (s *seen) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *seen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.mu.Lock()
		s.names[cmd.Name()]++
		s.mu.Unlock()
		return next(ctx, cmd)
	}
}
func (s *seen) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestHooksOfTheGivenClientAreKept(t *testing.T) {
	s := start(t)
	outer, hook := &seen{names: map[string]int{}}, &seen{names: map[string]int{}}
	client := redis.NewClient(&redis.Options{Addr: s.addr()})
	defer client.Close()
	client.AddHook(outer)
	client.AddHook(hook)
	l := newLocker(t, client)
	first := must(t)(l.Lock(ctx, "a", Lease(1500*time.Millisecond)))
	waits := make(chan *Hold)
	go func() { waits <- must(t)(l.Lock(ctx, "a")) }()
	until(t, "it waits and was renewed", func() bool { return s.waiters("a") == 1 && s.calls("rlock.renew") > 0 })
	release(t, first)
	release(t, <-waits)
	for _, name := range []string{"rlock.acquire", "rlock.renew", "rlock.release"} {
		if told, asked := hook.names[name], s.calls(name); told != asked || outer.names[name] != asked {
			t.Error(hook.names, name, "was seen", told, outer.names[name], "times, and the server executed", asked)
		}
	}
	before := fmt.Sprint(hook.names)
	client.Set(ctx, "theirs", 1, 0) // the client itself is as it was
	if hook.names["set"] != 1 || client.Get(ctx, "theirs").Val() != "1" {
		t.Error(before, hook.names)
	}
}
