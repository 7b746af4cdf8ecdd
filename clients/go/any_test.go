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

func TestOneOfManyIsTheFirstThatIsFree(t *testing.T) {
	s := start(t)
	any := s.locker().Any("pool", []string{"a", "b", "a"})
	first, second := must(t)(any.Lock(ctx)), must(t)(any.Lock(ctx))
	if first.Key() != "a" || second.Key() != "b" {
		t.Fatal(first.Key(), second.Key())
	}
	if _, err := any.Lock(ctx, Wait(time.Second)); !errors.Is(err, ErrNotAcquired) {
		t.Fatal(err)
	}
	waits := make(chan *Hold)
	go func() {
		next, _ := any.Lock(ctx)
		waits <- next
	}()
	until(t, "it waits in line", func() bool { return s.waiters("pool") == 1 })
	release(t, second)
	third := <-waits
	if third.Key() != "b" {
		t.Fatal(third.Key())
	}
	release(t, first)
	release(t, third)
	for _, key := range []string{"pool", "a", "b"} {
		if s.mode(key) != "free" {
			t.Fatal(key, s.mode(key))
		}
	}
}

func TestAKeyWithoutAPermitIsPassedOver(t *testing.T) {
	s := start(t)
	s.client.Do(ctx, "RLOCK.ACQUIRE", "a", "somebody")
	any := s.locker().Any("pool", []string{"a"})
	if _, err := any.Lock(ctx, Wait(100*time.Millisecond)); !errors.Is(err, ErrNotAcquired) {
		t.Fatal(err)
	}
	soon, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	if _, err := any.Lock(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if s.mode("pool") != "free" {
		t.Fatal("the permit is held")
	}
	time.AfterFunc(200*time.Millisecond, func() { s.client.Do(ctx, "RLOCK.FORCE", "a") })
	release(t, must(t)(any.Lock(ctx)))
	if s.mode("pool") != "free" || s.mode("a") != "free" {
		t.Fatal(s.mode("pool"), s.mode("a"))
	}
}

func TestAHoldShowsWhatItIs(t *testing.T) {
	hold := must(t)(start(t).locker().Lock(ctx, "a", Owner("me")))
	token := hold.Token()
	if shown := hold.String(); shown != fmt.Sprintf("a held by me, token %d, 30s left", token) &&
		!strings.HasPrefix(shown, fmt.Sprintf("a held by me, token %d, 29.", token)) {
		t.Error(shown)
	}
	release(t, hold)
	if shown := fmt.Sprint(hold); shown != fmt.Sprintf("a held by me, token %d, 0s left", token) {
		t.Error(shown)
	}
}

func TestACheckSaysWhatIsWrong(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "taken"))
	for _, key := range []string{"k", "taken"} {
		if err := l.Check(ctx, key); err != nil {
			t.Error(key, err)
		}
	}
	release(t, hold)
	s.client.Do(ctx, "ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "-ssubscribe")
	deaf := newLocker(t, redis.NewClient(&redis.Options{Addr: s.addr(), Username: "deaf", Password: "secret"}))
	if err := deaf.Check(ctx, "k"); !errors.Is(err, ErrNoPerm) {
		t.Error(err)
	}
	bare := bare(t)
	if err := bare.locker().Check(ctx, "k"); err == nil || !strings.Contains(err.Error(), "has not loaded the RLOCK module") {
		t.Error(err)
	}
	if s.mode("k") != "free" {
		t.Error(s.mode("k"))
	}
}

func TestWhatMakesNoSenseOfAny(t *testing.T) {
	l := start(t).locker()
	for _, any := range []*Any{
		l.Any("pool", nil), l.Any("pool", []string{"pool"}), l.Any("pool", []string{"a"}, Read()), l.Any("pool", []string{"a"}, Owner("me")),
	} {
		if _, err := any.Lock(ctx); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	}
}
