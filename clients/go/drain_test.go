package rlock

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestADrainEndsWaitsAndKeepsHolds(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "k", Lease(600*time.Millisecond)))
	named := must(t)(l.Lock(ctx, "named", Owner("ann")))
	waits := map[string]func() (*Hold, error){
		"one":     func() (*Hold, error) { return l.Lock(ctx, "k") },
		"session": func() (*Hold, error) { return l.Lock(ctx, "k", Session()) },
		"named":   func() (*Hold, error) { return l.Lock(ctx, "k", Owner("bob")) },
		"all":     func() (*Hold, error) { return l.All([]One{Key("k"), Key("other")}).Lock(ctx) },
		"any":     func() (*Hold, error) { return l.Any("pool", []string{"k"}).Lock(ctx) },
	}
	ended := make(chan error)
	for _, wait := range waits {
		go func() {
			_, err := wait()
			ended <- err
		}()
	}
	until(t, "they wait", func() bool { return s.waiters("k") == 4 && s.mode("pool") != "free" })
	left := make(chan []string)
	go func() { left <- l.Drain(20 * time.Second) }()
	for range waits {
		if err := <-ended; !errors.Is(err, redis.ErrClosed) {
			t.Error(err)
		}
	}
	for name, wait := range waits {
		if _, err := wait(); !errors.Is(err, redis.ErrClosed) {
			t.Error(name, err)
		}
	}
	if _, err := l.TryLock(ctx, "free", Owner("ann")); !errors.Is(err, redis.ErrClosed) {
		t.Error(err)
	}
	if s.waiters("k") != 0 || s.mode("pool") != "free" {
		t.Error(s.waiters("k"), s.mode("pool"))
	}
	release(t, must(t)(l.TryLock(ctx, "named", Owner("ann")))) // it holds that
	time.Sleep(2 * time.Second)
	if !hold.IsHeld() || s.mode("k") != "write" {
		t.Error("it is not renewed: ", hold, s.mode("k"))
	}
	release(t, hold)
	select {
	case <-left:
		t.Error("it returned while something was held")
	default:
	}
	release(t, named)
	if all := <-left; len(all) > 0 {
		t.Error(all)
	}
	if s.mode("k") != "free" || s.mode("named") != "free" || l.Drain(time.Minute) != nil {
		t.Error(s.mode("k"), s.mode("named"))
	}
}

func TestWhatADrainDoesNotWaitForHearsOfIt(t *testing.T) {
	s := start(t)
	l := s.locker()
	held := []*Hold{must(t)(l.Lock(ctx, "k", Lease(1500*time.Millisecond))), must(t)(l.Lock(ctx, "session", Session())),
		must(t)(l.All([]One{Key("a"), Key("b")}, Lease(1500*time.Millisecond)).Lock(ctx))}
	begin := time.Now()
	left := l.Drain(200 * time.Millisecond)
	if took := time.Since(begin); !slices.Equal(left, []string{"a", "b", "k", "session"}) || took > 1200*time.Millisecond {
		t.Error(left, took)
	}
	for _, hold := range held {
		<-hold.Context().Done()
		if !errors.Is(context.Cause(hold.Context()), ErrLost) || hold.IsHeld() {
			t.Error(hold, context.Cause(hold.Context()))
		}
		if err := hold.Release(); !errors.Is(err, ErrLost) {
			t.Error(hold, err)
		}
	}
	if s.mode("k") != "write" {
		t.Error("others may get in before the lease has ended")
	}
	until(t, "the session and the leases have ended", func() bool {
		return s.mode("session") == "free" && s.mode("k") == "free" && s.mode("a") == "free"
	})
}

// As the README shows it: requests that have the lock end, those that wait get an error, and nothing stays behind.
func TestAServerShutsDown(t *testing.T) {
	s := start(t)
	locker := s.locker()
	begun, goesOn := make(chan bool), make(chan bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := locker.Do(r.Context(), "report", func(context.Context, *Hold) error {
			close(begun)
			<-goesOn
			return nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	get := func() chan int {
		status := make(chan int, 1)
		go func() {
			if reply, err := http.Get(server.URL); err == nil {
				reply.Body.Close()
				status <- reply.StatusCode
			} else {
				t.Error(err)
			}
		}()
		return status
	}
	works := get()
	<-begun
	waits := get()
	until(t, "one waits", func() bool { return s.waiters("report") == 1 })
	left := make(chan []string)
	go func() { left <- locker.Drain(20 * time.Second) }()
	if status := <-waits; status != http.StatusServiceUnavailable {
		t.Error(status)
	}
	go func() { time.Sleep(100 * time.Millisecond); close(goesOn) }()
	if err := server.Config.Shutdown(timeout(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	if status := <-works; status != http.StatusOK {
		t.Error(status)
	}
	if all := <-left; len(all) > 0 || s.mode("report") != "free" {
		t.Error(all, s.mode("report"))
	}
}
