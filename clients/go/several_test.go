package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestSeveralLocksAreOneHold(t *testing.T) {
	s := start(t)
	l := s.locker()
	all := l.All([]One{Key("b"), Key("a"), ReadKey("c"), LimitKey("p", 2), Key("a")})
	hold := must(t)(all.Lock(ctx))
	if s.mode("a") != "write" || s.mode("b") != "write" || s.mode("c") != "read" || s.mode("p") != "read" || len(hold.Keys()) != 4 {
		t.Fatal(s.mode("a"), s.mode("b"), s.mode("c"), s.mode("p"), hold.Keys())
	}
	if _, err := l.All([]One{Key("d"), Key("a")}).Lock(ctx, Wait(50*time.Millisecond)); !errors.Is(err, ErrNotAcquired) {
		t.Fatal(err)
	}
	waits := make(chan *Hold)
	go func() {
		next, _ := all.Lock(ctx, Wait(10*time.Second))
		waits <- next
	}()
	until(t, "it waits", func() bool { return s.waiters("a") == 1 })
	release(t, hold)
	release(t, <-waits)
	for _, key := range []string{"a", "b", "c", "p", "d"} {
		if s.mode(key) != "free" {
			t.Fatal(key, s.mode(key))
		}
	}
}

func TestKeysThatCannotBeLockedTogether(t *testing.T) {
	l := start(t).locker()
	for _, ones := range [][]One{{}, {Key("a"), ReadKey("a")}, {LimitKey("a", 1), LimitKey("a", 2)},
		{LimitKey("a", 0)}, {Key("b"), LimitKey("a", -1)}} {
		if _, err := l.All(ones).Lock(ctx); !errors.Is(err, ErrKeys) {
			t.Fatal(ones, err)
		}
	}
	if slot("123456789") != 12739 || slot("x{123456789}y") != 12739 || slot("{}a") == slot("{}b") {
		t.Fatal(slot("123456789"))
	}
}

func TestTheLossOfOneIsTheLossOfAll(t *testing.T) {
	s := start(t)
	hold := must(t)(s.locker().All([]One{Key("a"), Key("b")}, Lease(3*time.Second)).Lock(ctx))
	s.client.Do(ctx, "RLOCK.FORCE", "b")
	until(t, "it is told", func() bool { return errors.Is(context.Cause(hold.Context()), ErrLost) })
	if err := hold.Release(); !errors.Is(err, ErrLost) || s.mode("a") != "free" {
		t.Fatal(err, s.mode("a"))
	}
}

func TestTheSeatIsTakenUntilTheLossIsNoted(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.addr()})
	var all *All
	releases := 0
	client.AddHook(hook(func(command string, next func() error) error {
		if command != "rlock.mrelease" {
			return next()
		}
		if releases++; releases == 2 { // what is left of the hold is released
			if _, err := all.Lock(ctx, Wait(0)); !errors.Is(err, ErrNotAcquired) {
				t.Error("its owner acquired it meanwhile: ", err)
			}
		}
		return next()
	}))
	all = newLocker(t, client).All([]One{Key("a"), Key("b")}, Owner("ann"))
	hold := must(t)(all.Lock(ctx))
	s.client.Do(ctx, "RLOCK.FORCE", "b")
	if err := hold.Release(); !errors.Is(err, ErrLost) || releases != 2 {
		t.Fatal(err, releases)
	}
	release(t, must(t)(all.Lock(ctx)))
}

func TestSeveralLostLocksAreReleasedBeforeTheirOwnerAcquiresAnew(t *testing.T) {
	s := start(t)
	l, mine := s.locker(), Owner("me")
	all := l.All([]One{Key("a"), Key("b")}, mine)
	lost := must(t)(all.Lock(ctx, Lease(time.Second)))
	s.client.Do(ctx, "RLOCK.FORCE", "b")
	<-lost.Context().Done()
	for what, lock := range map[string]func() (*Hold, error){
		"all":     func() (*Hold, error) { return all.Lock(ctx) },
		"some":    func() (*Hold, error) { return l.All([]One{Key("b"), Key("c")}, mine).Lock(ctx) },
		"one":     func() (*Hold, error) { return l.Lock(ctx, "a", mine) },
		"another": func() (*Hold, error) { return l.Lock(ctx, "b", mine) },
	} {
		_, err := lock()
		if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "release the lost hold of a, b first") {
			t.Error(what, ": ", err)
		}
	}
	if err := lost.Release(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "a, b") {
		t.Fatal(err)
	}
	next := must(t)(all.Lock(ctx))
	if alive, err := next.Valid(ctx); !alive || err != nil {
		t.Fatal(alive, err)
	}
	release(t, next)

	single := must(t)(l.Lock(ctx, "a", mine))
	s.client.Do(ctx, "RLOCK.FORCE", "a")
	if alive, err := single.Valid(ctx); alive || err != nil {
		t.Fatal(alive, err)
	}
	if _, err := all.Lock(ctx); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	again := must(t)(l.Lock(ctx, "a", mine)) // a single one may pass it
	if err := single.Release(); !errors.Is(err, ErrLost) || !again.IsHeld() {
		t.Fatal(err)
	}
	release(t, again)
	release(t, must(t)(all.Lock(ctx)))
}

func TestAnOwnerDoesNotMixSingleLocksAndSeveral(t *testing.T) {
	s := start(t)
	l, mine := s.locker(), Owner("me")
	all := l.All([]One{Key("a"), Key("b")}, mine)
	hold := must(t)(all.Lock(ctx))
	for _, key := range []string{"a", "b"} {
		if _, err := l.Lock(ctx, key, mine); !errors.Is(err, ErrKeys) {
			t.Fatal(key, err)
		}
	}
	release(t, hold)
	single := must(t)(l.Lock(ctx, "b", mine))
	if _, err := all.Lock(ctx); !errors.Is(err, ErrKeys) || s.mode("a") != "free" {
		t.Fatal(err, s.mode("a"))
	}
	release(t, single)
	release(t, must(t)(all.Lock(ctx)))
}

func TestAnObserverThatIsSentToNobodyAsksThePrimaryAgain(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "leader"))
	gone := l.servers.at(fmt.Sprint("127.0.0.1:", freePort(t)), s.client)
	sent := observer{l: l, key: "leader", block: 1000, moved: place{node: gone}}
	if _, _, err := sent.next(ctx); !isUnsent(err) {
		t.Fatal(err)
	}
	leader, isNew, err := sent.next(ctx)
	if err != nil || !isNew || leader.Token != hold.Token() {
		t.Fatal(leader, isNew, err)
	}
	release(t, hold)
}

func TestAnObserverThatIsRefusedWarnsOnce(t *testing.T) {
	s := start(t)
	said := warnings(t)
	s.client.Set(ctx, "leader", "no lock", 0)
	observing, stop := context.WithCancel(ctx)
	leaders := s.locker().Election("leader", "").Observe(observing)
	until(t, "it has asked twice", func() bool { return s.calls("rlock.await") >= 2 })
	s.client.Del(ctx, "leader")
	<-leaders
	stop()
	for range leaders { // until it has ended
	}
	if count := strings.Count(said.String(), "leader: the leader cannot be observed: WRONGTYPE"); count != 1 {
		t.Error(count, " warnings: ", said)
	}
}

func TestElection(t *testing.T) {
	s := start(t)
	election := s.locker().Election("leader", "10.0.0.1:8443")
	observing, stop := context.WithCancel(ctx)
	leaders := election.Observe(observing)
	if first := <-leaders; first != (Leader{}) {
		t.Fatal(first)
	}
	hold := must(t)(election.Campaign(ctx))
	led := <-leaders
	now, err := election.Leader(ctx)
	if led.Token != hold.Token() || led.Owner != hold.Owner() || led.Name() != "10.0.0.1:8443" || now != led || err != nil {
		t.Fatal(led, now, err)
	}
	if _, err := election.Campaign(ctx, Wait(0)); !errors.Is(err, ErrNotAcquired) {
		t.Fatal("a process leads twice", err)
	}
	begun := time.Now()
	s.client.Do(ctx, "RLOCK.FORCE", "leader") // closes the connection of the session
	<-hold.Context().Done()
	if next := <-leaders; next != (Leader{}) || time.Since(begun) > time.Second {
		t.Fatal(next, time.Since(begun))
	}
	if err := hold.Release(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	stop()
	if _, isOpen := <-leaders; isOpen {
		t.Fatal("it goes on")
	}
}
