package rlock

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// calls returns how often the server has executed a command.
func (s *server) calls(command string) (count int) {
	_, after, _ := strings.Cut(s.client.Info(ctx, "commandstats").Val(), "cmdstat_"+command+":calls=")
	fmt.Sscan(strings.Split(after, ",")[0], &count)
	return count
}

func TestNothingGoesOnAfterClose(t *testing.T) {
	s := start(t)
	s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 60000)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "plain", Lease(900*time.Millisecond)))
	session := must(t)(l.Lock(ctx, "session", Session()))
	waits := make(chan error, 2)
	for waiting := range int64(2) {
		go func() {
			_, err := l.Lock(ctx, "busy")
			waits <- err
		}()
		until(t, "it waits", func() bool { return s.waiters("busy") == waiting+1 })
	}
	l.Close()
	for range 2 {
		select {
		case err := <-waits:
			if !errors.Is(err, redis.ErrClosed) {
				t.Fatal(err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("a wait goes on")
		}
	}
	until(t, "the session has ended", func() bool { return s.mode("session") == "free" })
	until(t, "the wait by a connection has ended", func() bool { return s.waiters("busy") <= 1 }) // a ticket stays for a while
	for _, each := range []*Hold{hold, session} {
		until(t, "its holder knows", func() bool { return !each.IsHeld() && context.Cause(each.Context()) == ErrLost })
	}
	renewals := s.calls("rlock.renew")
	until(t, "the lease is over", func() bool { return s.mode("plain") == "free" })
	if again := s.calls("rlock.renew"); again != renewals {
		t.Fatal("renewed: ", again-renewals)
	}
	if _, err := l.Lock(ctx, "other"); !errors.Is(err, redis.ErrClosed) {
		t.Fatal(err)
	}
	s.client.Do(ctx, "RLOCK.RELEASE", "busy", "somebody")
	until(t, "nobody is there", func() bool { return strings.Count(s.client.ClientList(ctx).Val(), "id=") == 1 })
}

func TestWhatWasGrantedAtTheCloseIsReleased(t *testing.T) {
	s := start(t)
	granted, isClosing := make(chan bool, 1), make(chan struct{})
	l := s.withHook(func(command string, next func() error) error {
		err := next()
		if command == "rlock.acquire" {
			granted <- true
			<-isClosing
		}
		return err
	})
	waits := make(chan error)
	go func() {
		_, err := l.Lock(ctx, "order")
		waits <- err
	}()
	<-granted
	context.AfterFunc(l.closing, func() { close(isClosing) })
	l.Close()
	if err := <-waits; !errors.Is(err, redis.ErrClosed) {
		t.Error(err)
	}
	if mode := s.mode("order"); mode != "free" {
		t.Error(mode)
	}
}

func TestAWaitEndsInTimeThoughNobodyAnswers(t *testing.T) {
	s := start(t)
	unused, used := s.locker(), s.locker()
	release(t, must(t)(used.Lock(ctx, "order")))
	s.signal(syscall.SIGSTOP)
	for _, l := range []*Locker{unused, used} {
		for _, choices := range owners {
			begin := time.Now()
			_, err := l.Lock(ctx, "order", append(choices, Wait(100*time.Millisecond))...)
			if took := time.Since(begin); !errors.Is(err, ErrUnavailable) || took > 500*time.Millisecond {
				t.Error(err, took)
			}
			cancelled, cancel := context.WithCancel(ctx)
			time.AfterFunc(100*time.Millisecond, cancel)
			begin = time.Now()
			_, err = l.Lock(cancelled, "order", choices...)
			if took := time.Since(begin); !errors.Is(err, context.Canceled) || took > 500*time.Millisecond {
				t.Error(err, took)
			}
		}
	}
}

func TestAnOutageIsNoStorm(t *testing.T) {
	s := start(t)
	var dials atomic.Int64
	client := redis.NewClient(&redis.Options{Addr: s.addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}})
	l := newLocker(t, client)
	release(t, must(t)(l.Lock(ctx, "order")))
	s.kill()
	dials.Store(0)
	var users sync.WaitGroup
	for range 50 {
		users.Go(func() {
			if _, err := l.Lock(ctx, "order", Wait(2*time.Second)); !errors.Is(err, ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	users.Wait()
	if count := dials.Load(); count > 40 {
		t.Error(count, " connects in two seconds")
	}
	s.again()
	release(t, must(t)(l.Lock(ctx, "order", Wait(5*time.Second))))
	if cancels, releases := s.calls("rlock.cancel"), s.calls("rlock.release"); cancels != 0 || releases != 1 {
		t.Error("undone though never sent: ", cancels, releases)
	}
}

func TestDoReleasesWhenItsGoroutineExits(t *testing.T) {
	s := start(t)
	l := s.locker()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = l.Do(ctx, "order", func(context.Context, *Hold) error {
			runtime.Goexit() // as t.FailNow does
			return nil
		})
	}()
	<-over
	if mode := s.mode("order"); mode != "free" {
		t.Fatal(mode)
	}
}

// With TLS, go-redis returns a nil *tls.Conn with the error, which is not a nil net.Conn.
func TestADialThatFailsGivesNoConnection(t *testing.T) {
	refuse := func(context.Context) (net.Conn, error) { return (*tls.Conn)(nil), errors.New("no TLS") }
	if conn, err := new(dials).dial(ctx, refuse); conn != nil || err == nil {
		t.Fatal(conn, err)
	}
}

func TestConnectionsByTLSAreUsedAgain(t *testing.T) {
	s := start(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	known := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{signed}, PrivateKey: key}}}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", known)
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: listener, to: s.addr(), eat: make(chan struct{})}
	t.Cleanup(func() { listener.Close() })
	go c.serve()
	l := newLocker(t, redis.NewClient(&redis.Options{
		Addr: listener.Addr().String(), TLSConfig: &tls.Config{InsecureSkipVerify: true},
	}))
	for range 20 {
		release(t, must(t)(l.Lock(ctx, "order")))
	}
	if count := c.accepted.Load(); count > 3 {
		t.Error(count, " connections for 40 requests")
	}
}

func TestAReleaseEndsInTimeThoughNobodyAnswers(t *testing.T) {
	s := start(t)
	hold := must(t)(s.locker().Lock(ctx, "order", Lease(time.Second), NoRenewal()))
	s.signal(syscall.SIGSTOP)
	begin := time.Now()
	err := hold.Release()
	if took := time.Since(begin); err == nil || took > 1800*time.Millisecond {
		t.Error(err, took)
	}
}

func TestAReleaseEndsInTimeThoughItsOwnerAsksOnAndOn(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "order", Owner("ann"), Lease(time.Second), NoRenewal()))
	s.signal(syscall.SIGSTOP)
	waits := make(chan error, 1)
	go func() {
		_, err := l.Lock(ctx, "order", Owner("ann"))
		waits <- err
	}()
	until(t, "it asks", func() bool { return len(hold.tenure.seat.turn) == 1 })
	if err := released(t, hold); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	s.signal(syscall.SIGCONT)
	if err := <-waits; !errors.Is(err, ErrLost) { // the level below
		t.Error(err)
	}
	until(t, "nobody has or wants the seat", func() bool {
		seats.Lock()
		defer seats.Unlock()
		return hold.tenure.seat.users == 0
	})
	release(t, must(t)(l.Lock(ctx, "order", Owner("ann"), Wait(0))))
}

func TestACallThatIsCancelledEnds(t *testing.T) {
	s := start(t)
	l := s.locker()
	hold := must(t)(l.Lock(ctx, "order"))
	calls := map[string]func(context.Context) error{
		"extend": func(ctx context.Context) error { return hold.Extend(ctx, time.Minute) },
		"valid":  func(ctx context.Context) error { _, err := hold.Valid(ctx); return err },
		"leader": func(ctx context.Context) error { _, err := l.Election("order", "").Leader(ctx); return err },
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := hold.Extend(over, time.Minute); !errors.Is(err, context.Canceled) || s.calls("rlock.renew") != 0 {
		t.Error("asked though cancelled: ", err)
	}
	s.signal(syscall.SIGSTOP)
	for what, call := range calls {
		cancelling, cancel := context.WithCancel(ctx)
		time.AfterFunc(100*time.Millisecond, cancel)
		begin := time.Now()
		if err := call(cancelling); !errors.Is(err, context.Canceled) || time.Since(begin) > time.Second {
			t.Error(what, ": ", err, time.Since(begin))
		}
	}
	s.signal(syscall.SIGCONT)
	release(t, hold)
}

// All waits share one subscription; and while nobody waits, a subscription that ended is not renewed.
func TestASubscriptionIsKept(t *testing.T) {
	s := durable(t)
	l := s.locker()
	listens := regexp.MustCompile(`(?m)^id=\d+ .* ssub=1 `)
	subscribed := func() []string { return listens.FindAllString(s.client.ClientList(ctx).Val(), -1) }
	wait := func() string {
		s.client.Do(ctx, "RLOCK.ACQUIRE", "busy", "somebody", "LEASE", 60000)
		waits := make(chan *Hold)
		go func() { waits <- must(t)(l.Lock(ctx, "busy")) }()
		until(t, "it waits", func() bool { return s.waiters("busy") == 1 })
		s.client.Do(ctx, "RLOCK.RELEASE", "busy", "somebody")
		release(t, <-waits)
		if count := len(subscribed()); count != 1 {
			t.Fatal(count, " subscriptions")
		}
		id, _, _ := strings.Cut(subscribed()[0], " ")
		return id
	}
	id := wait()
	if again := wait(); again != id {
		t.Error(again, id)
	}
	s.kill()
	s.again()
	hold := must(t)(l.Lock(ctx, "order"))
	hold.Context()
	release(t, hold)
	if count := len(subscribed()); count != 0 {
		t.Error(count, " subscriptions for nobody")
	}
	wait()
	l.Close()
	until(t, "it has ended", func() bool { return len(subscribed()) == 0 })
}
