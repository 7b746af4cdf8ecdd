package rlock

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/started"
)

var ctx = context.Background()

// server is a real server with the module, for one test.
type server struct {
	t      testing.TB
	port   int
	client *redis.Client // for the test's own questions
	*started.Server
}

func start(t testing.TB, words ...string) *server {
	t.Helper()
	return run(t, append(append(slices.Clone(dataWords), "--loadmodule", os.Getenv("RLOCK_MODULE")), words...)...)
}

var dataWords = []string{"--save", "", "--notify-keyspace-events", "KEd"}

// bare is a server without the module.
func bare(t testing.TB) *server {
	t.Helper()
	return run(t, dataWords...)
}

// sentinel watches that server, and serves no data.
func sentinel(t testing.TB, of *server) *server {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	if err := os.WriteFile(conf, []byte(fmt.Sprintf("sentinel monitor m 127.0.0.1 %d 1\n", of.port)), 0o644); err != nil {
		t.Fatal(err)
	}
	return run(t, conf, "--sentinel")
}

func run(t testing.TB, words ...string) *server {
	t.Helper()
	program := os.Getenv("RLOCK_SERVER")
	if program == "" || os.Getenv("RLOCK_MODULE") == "" {
		t.Skip("RLOCK_SERVER and RLOCK_MODULE say which server, with which module")
	}
	s := &server{t: t, Server: started.New(t, program, words...)}
	s.port, s.client = s.Port, redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { s.client.Close() })
	return s
}

func (s *server) addr() string { return s.Addr() }

// again starts the server after it was killed.
func (s *server) again() {
	s.t.Helper()
	s.Start()
	until(s.t, "the server is up", func() bool { return s.client.Ping(ctx).Err() == nil })
}

func (s *server) kill() { s.Kill() }

func (s *server) signal(signal os.Signal) { s.Signal(signal) }

func freePort(t testing.TB) int {
	t.Helper()
	return started.FreePort(t)
}

func (s *server) locker(settings ...Setting) *Locker {
	s.t.Helper()
	return newLocker(s.t, redis.NewClient(&redis.Options{Addr: s.addr()}), settings...)
}

func newLocker(t testing.TB, client redis.UniversalClient, settings ...Setting) *Locker {
	t.Helper()
	l, err := New(client, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		client.Close()
	})
	return l
}

// info returns a field of RLOCK.INFO.
func info(t testing.TB, client redis.UniversalClient, key, name string) any {
	t.Helper()
	reply, err := client.Do(ctx, "RLOCK.INFO", key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return field(reply, name)
}

func (s *server) mode(key string) string   { return info(s.t, s.client, key, "mode").(string) }
func (s *server) waiters(key string) int64 { return info(s.t, s.client, key, "queue-length").(int64) }

func must(t testing.TB) func(*Hold, error) *Hold {
	t.Helper()
	return func(hold *Hold, err error) *Hold {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return hold
	}
}

func release(t testing.TB, hold *Hold) {
	t.Helper()
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
}

func until(t testing.TB, what string, isSo func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !isSo(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 20 seconds: ", what)
		}
	}
}

// ways are both ways to wait: on the shared connections, and on the session's own.
var ways = map[string][]Option{"": nil, "session": {Session()}}

// owners are both kinds of owners: one for each acquisition, and a named one.
var owners = map[string][]Option{"": nil, "ann": {Owner("ann")}}

// warnings collects what is logged during this test.
func warnings(t testing.TB) *bytes.Buffer {
	said, before := new(bytes.Buffer), slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(said, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return said
}

// hook is a user's hook around each command.
type hook func(command string, next func() error) error

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(cmd.Name(), func() error { return next(ctx, cmd) })
	}
}
func (hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// withHook returns a locker for a client with that hook.
func (s *server) withHook(around hook) *Locker {
	client := redis.NewClient(&redis.Options{Addr: s.addr()})
	client.AddHook(around)
	return newLocker(s.t, client)
}

// cutter passes bytes on to a server, and can swallow future replies, one connection after another.
type cutter struct {
	listener net.Listener
	to       string
	eat      chan struct{} // for each one in it, one answer is swallowed and its connection cut

	accepted atomic.Int64

	late    chan func() // each passes on a request for a session that was held back
	ignores atomic.Bool // those to come are held back

	isDeaf atomic.Bool // nothing of subscriptions is passed on any more
}

func cut(t testing.TB, to string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: listener, to: to, eat: make(chan struct{}, 100), late: make(chan func(), 100)}
	t.Cleanup(func() { listener.Close() })
	go c.serve()
	return c
}

func (c *cutter) serve() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.accepted.Add(1)
		go c.pass(near)
	}
}

func (c *cutter) pass(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer far.Close()
	asked := make(chan bool, 1000)
	var listens atomic.Bool
	go func() {
		buffer := make([]byte, 4096)
		for {
			count, err := near.Read(buffer)
			if err != nil {
				far.Close()
				return
			}
			if c.ignores.Load() && strings.Contains(string(buffer[:count]), "SESSION") {
				c.late <- func() { far.Write(buffer[:count]) }
				return
			}
			if strings.Contains(string(buffer[:count]), "SSUBSCRIBE") {
				listens.Store(true)
			}
			asked <- strings.Contains(strings.ToUpper(string(buffer[:count])), "RLOCK.")
			far.Write(buffer[:count])
		}
	}()
	buffer := make([]byte, 4096)
	isLock := false
	for {
		count, err := far.Read(buffer)
		if err != nil {
			return
		}
		for more := true; more; {
			select {
			case isLock = <-asked:
			default:
				more = false
			}
		}
		if isLock {
			select {
			case <-c.eat:
				return
			default:
			}
		}
		if !listens.Load() || !c.isDeaf.Load() {
			near.Write(buffer[:count])
		}
	}
}
