package rlock

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A write that the server itself refuses once the hold is over. In a cluster both keys need one {hash tag}.
var fencedSet = redis.NewScript(`
	if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end
	redis.call('SET', KEYS[2], ARGV[2])
	return 1`)

var (
	ctx    = context.Background()
	client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("PORT")})
	locker = New(client)
)

func TestTwoWorkersNeverWorkAtOnce(t *testing.T) {
	client.Del(ctx, "go:count")
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for range 50 {
				hold := lock(t, "go:counter", Options{Wait: 10 * time.Second})
				count, _ := client.Get(ctx, "go:count").Int()
				client.Set(ctx, "go:count", count+1, 0)
				unlock(t, hold)
			}
		})
	}
	workers.Wait()
	if count, err := client.Get(ctx, "go:count").Int(); count != 100 {
		t.Fatal(count, err)
	}
}

func TestTokensRiseAndReadersShare(t *testing.T) {
	one := lock(t, "go:read", Options{Mode: "READ"})
	two := lock(t, "go:read", Options{Mode: "READ"})
	defer unlock(t, one)
	defer unlock(t, two)
	if two.Token <= one.Token {
		t.Fatal(one.Token, two.Token)
	}
}

func TestAWaitEndsInTimeAndWithItsContext(t *testing.T) {
	defer unlock(t, lock(t, "go:busy", Options{}))
	start := time.Now()
	_, err := locker.Lock(ctx, "go:busy", Options{Wait: 100 * time.Millisecond})
	if !errors.Is(err, ErrNotAcquired) || time.Since(start) < 100*time.Millisecond {
		t.Fatal(err, time.Since(start))
	}
	cancelled, cancel := context.WithCancel(ctx)
	go func() {
		until(t, func() bool { return waiters("go:busy") == 1 })
		cancel()
	}()
	start = time.Now()
	_, err = locker.Lock(cancelled, "go:busy", Options{Wait: time.Minute})
	if !errors.Is(err, context.Canceled) || time.Since(start) > 20*time.Second {
		t.Fatal(err, time.Since(start))
	}
	if waiters("go:busy") != 0 {
		t.Fatal("it still waits")
	}
}

func TestAnAcquireThatArrivesTwiceCountsOnce(t *testing.T) {
	// A server that answers later than its client is patient: go-redis hangs up and sends again, and then the server
	// executes both.
	options := *client.Options()
	options.PushNotificationProcessor = nil
	options.ReadTimeout = 500 * time.Millisecond
	options.MinRetryBackoff, options.MaxRetryBackoff = 2*time.Second, 2*time.Second
	hasty := redis.NewClient(&options)
	hasty.Ping(ctx)
	before, server := acquires(t), process(t)
	server.Signal(syscall.SIGSTOP)
	time.AfterFunc(time.Second, func() { server.Signal(syscall.SIGCONT) })
	hold, err := New(hasty).Lock(ctx, "go:resend", Options{})
	if err != nil || acquires(t) < before+2 {
		t.Fatal(err, acquires(t)-before)
	}
	if depth, err := client.Do(ctx, hold.words("RLOCK.HOLDS")...).Int(); depth != 1 {
		t.Fatal(depth, err)
	}
	unlock(t, hold)
}

func TestAHoldOutlivesItsLeaseAndALostOneIsNoticed(t *testing.T) {
	const lease = 2 * time.Second
	hold := lock(t, "go:lost", Options{Lease: lease})
	end := client.PExpireTime(ctx, "go:lost").Val()
	until(t, func() bool { return client.PExpireTime(ctx, "go:lost").Val() >= end+lease })
	if err := hold.Context().Err(); err != nil {
		t.Fatal(context.Cause(hold.Context()))
	}
	write := func(text string) int {
		done, err := fencedSet.Run(ctx, client, []string{"go:lost", "go:value"}, hold.Token, text).Int()
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if write("mine") != 1 {
		t.Fatal("the hold ended with its first lease")
	}
	client.Do(ctx, "RLOCK.FORCE", "go:lost")
	if write("too late") != 0 || client.Get(ctx, "go:value").Val() != "mine" {
		t.Fatal("a write without the lock")
	}
	<-hold.Context().Done()
	if err := hold.Unlock(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
}

func TestOfTwoThatWaitForEachOtherOneIsTold(t *testing.T) {
	// One owner with two locks: the server sees a cycle only between names.
	ann, bob := Options{Owner: "go:ann", Wait: 10 * time.Second}, Options{Owner: "go:bob", Wait: 10 * time.Second}
	annLeft, bobRight := lock(t, "go:left", ann), lock(t, "go:right", bob)
	done := make(chan struct{})
	go func() {
		unlock(t, lock(t, "go:left", bob))
		unlock(t, bobRight)
		close(done)
	}()
	until(t, func() bool { return waiters("go:left") == 1 })
	if _, err := locker.Lock(ctx, "go:right", ann); !errors.Is(err, ErrDeadlock) {
		t.Fatal(err)
	}
	unlock(t, annLeft) // what to do about it: let go of what is held, which lets bob go on, then begin again
	<-done
}
