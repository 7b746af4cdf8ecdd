package rlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"rlock.example/rlock/internal/machine"
)

// servers finds the primary of a key. All connections belong to the package: there are no hidden retries, and no waits
// for a connection that other parts of the program use.
type servers struct {
	cluster *redis.ClusterClient    // nil: one primary
	service atomic.Pointer[service] // nil: not asked yet
	closed  atomic.Bool
	mu      sync.Mutex
	nodes   map[string]*node
	lines   map[*line]bool // those that are in use
	rtt     atomic.Int64   // about how long a reply takes, in milliseconds

	name      func() string // of the channels, and in those of owners
	isSharded atomic.Bool   // a Cluster by the client of one of its nodes
}

// failover is the name that go-redis shows instead of an address with Sentinel.
const failover = "FailoverClient"

// node is one primary; with Sentinel, the current one.
type node struct {
	name    string // address and database
	servers *servers
	isKnown atomic.Bool // its identity is known, and it has closed no connection since
	dials   dials
	options redis.Options
	given   *redis.Client // has the hooks
	client  atomic.Pointer[redis.Client]
	renewed atomic.Int64

	wasPrimary atomic.Bool            // it has executed what only a primary does
	dialled    atomic.Pointer[string] // with Sentinel: the primary that was found last
	box        atomic.Pointer[inbox]  // nil: not needed yet
	opens      chan struct{}          // taken while it is opened
	mu         sync.Mutex
	idle       []*line
}

func newServers(given redis.UniversalClient) (*servers, error) {
	s := &servers{nodes: map[string]*node{}, lines: map[*line]bool{}}
	// Drawn on first use, so that a snapshot of a program that has only started does not contain it.
	s.name = sync.OnceValue(func() string {
		random := make([]byte, 8)
		_, _ = rand.Read(random)
		return hex.EncodeToString(random)
	})
	switch client := given.(type) {
	case *redis.Client:
		s.at("", client)
	case *redis.ClusterClient:
		s.cluster = client
	default:
		return nil, fmt.Errorf("rlock: %T is neither a redis.Client nor a redis.ClusterClient", given)
	}
	return s, nil
}

func (s *servers) close() {
	s.closed.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		n.client.Load().Close()
	}
	for l := range s.lines {
		go l.kill()
	}
}

// at returns the node at addr, and creates it with the options of given if it is new. Its requests pass through the
// hooks of given.
func (s *servers) at(addr string, given *redis.Client) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[addr]
	if n == nil {
		n = &node{options: *given.Options(), given: given, servers: s, opens: make(chan struct{}, 1)}
		if addr != "" {
			n.options.Addr = addr
		}
		n.name = fmt.Sprint(n.options.Addr, "/", n.options.DB)
		n.options.MaxRetries, n.options.DialerRetries, n.options.MinIdleConns = -1, 1, 0
		// Each request has its own time limit, by its context. The timeouts for the user's requests would cut ours short.
		n.options.ContextTimeoutEnabled, n.options.ReadTimeout, n.options.WriteTimeout = true, -1, -1
		n.options.PushNotificationProcessor, n.options.Limiter = nil, nil
		n.options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		if begin := n.options.OnConnect; s.cluster == nil {
			n.options.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
				if begin != nil {
					if err := begin(ctx, conn); err != nil {
						return err
					}
				}
				return s.meet(ctx, n, conn)
			}
		}
		dial := n.options.Dialer
		n.options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if s.closed.Load() {
				return nil, redis.ErrClosed
			}
			conn, err := n.dials.dial(ctx, func(ctx context.Context) (net.Conn, error) { return dial(ctx, network, addr) })
			if err == nil && n.options.Addr == failover {
				found := conn.RemoteAddr().String()
				if before := n.dialled.Swap(&found); before == nil || *before != found {
					n.isKnown.Store(false)
				}
			}
			return conn, err
		}
		n.client.Store(n.newClient(&n.options))
		s.nodes[addr] = n
	}
	return n
}

// newClient returns a client of our own, with the current hooks of the user's client.
func (n *node) newClient(options *redis.Options) *redis.Client {
	client := redis.NewClient(options)
	client.AddHook(through{hooks: hooked(n.given)})
	return client
}

// locate returns the primary of key.
func (s *servers) locate(ctx context.Context, key string) (*node, error) {
	if s.cluster == nil {
		return s.at("", nil), nil
	}
	type found struct {
		master *redis.Client
		err    error
	}
	// It may ask one server after another, however long each of them is silent.
	f, isOver := heed(ctx, func() found {
		master, err := s.cluster.MasterForKey(ctx, key)
		return found{master, err}
	})
	switch {
	case !isOver:
		return nil, unsent(ctx.Err())
	case f.err != nil:
		return nil, faultOf("the Cluster", f.err)
	}
	return s.at(f.master.Options().Addr, f.master), nil
}

// redirection returns where an error of n redirects to: an address, and whether for this request only.
func (n *node) redirection(err error) (addr string, isAsk bool) {
	word := code(err)
	if word != "MOVED" && word != "ASK" {
		return "", false
	}
	if words := strings.Fields(err.Error()); len(words) == 3 {
		host, port, _ := net.SplitHostPort(words[2])
		if host == "" { // one that does not know where others are names only a port
			host, _, _ = net.SplitHostPort(n.options.Addr)
		}
		return net.JoinHostPort(host, port), word == "ASK"
	}
	return "", false
}

// isElsewhere says whether the primary that Sentinel names is no longer the server of l.
func (n *node) isElsewhere(l *line) bool {
	found := n.dialled.Load()
	return found != nil && l.socket().RemoteAddr().String() != *found
}

// do asks the primary of key, and follows redirections.
func (s *servers) do(ctx context.Context, key string, words []any) *redis.Cmd {
	n, err := s.locate(ctx, key)
	if err != nil {
		s.reload(ctx)
		return redis.NewCmdResult(nil, err)
	}
	reply, n := s.ask(ctx, place{node: n}, words)
	for range 3 {
		addr, isAsk := n.redirection(reply.Err())
		if addr == "" {
			break
		}
		reply, n = s.ask(ctx, place{s.at(addr, n.given), isAsk}, words)
	}
	return reply
}

// ask sends a request to one server, and returns its reply and that server.
func (s *servers) ask(ctx context.Context, at place, words []any) (*redis.Cmd, *node) {
	n := at.node
	if s.closed.Load() {
		return redis.NewCmdResult(nil, redis.ErrClosed), n
	}
	client := n.client.Load()
	if client.PoolStats().TotalConns == 0 {
		if err := n.dials.ready(ctx); err != nil {
			s.reload(ctx)
			return redis.NewCmdResult(nil, n.known(err)), n
		}
	}
	sent := now()
	var cmd *redis.Cmd
	if at.isAsk {
		pipe := client.Pipeline()
		pipe.Do(ctx, "ASKING")
		cmd = pipe.Do(ctx, words...)
		_, _ = pipe.Exec(ctx)
	} else {
		cmd = client.Do(ctx, words...)
	}
	cmd = n.judged(ctx, words, cmd)
	if !isBroken(cmd.Err()) && !isFault(cmd.Err()) {
		s.replied(now() - sent)
	}
	if isBroken(cmd.Err()) {
		if !errors.Is(cmd.Err(), os.ErrDeadlineExceeded) {
			n.isKnown.Store(false)
		}
		if now()-sent >= machine.Looks {
			n.closeInbox(sent)
		}
	}
	switch word := code(cmd.Err()); {
	case word == "MOVED":
		s.reload(ctx)
	case isBroken(cmd.Err()), word == "READONLY":
		if word != "" {
			n.closeInbox(machine.Forever)
		}
		n.anew(client)
		s.reload(ctx)
	}
	return cmd, n
}

// replied records how long a reply took. A single fast reply replaces all slower ones: otherwise, waits after an outage
// would end much too early.
func (s *servers) replied(took machine.Ms) {
	if rtt := s.rtt.Load(); took < rtt {
		s.rtt.Store(took)
	} else {
		s.rtt.Add((took - rtt) / 8)
	}
}

// heed returns the result of work, and whether it ended before ctx: go-redis itself only observes deadlines.
func heed[T any](ctx context.Context, work func() T) (result T, isOver bool) {
	done := make(chan T, 1)
	go func() { done <- work() }()
	select {
	case result = <-done:
		return result, true
	case <-ctx.Done():
		return result, false
	}
}

// heed sends a request for a caller that may give up.
func (s *servers) heed(ctx context.Context, key string, words []any) *redis.Cmd {
	reply, isOver := heed(ctx, func() *redis.Cmd {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), duration(machine.Reply))
		defer cancel()
		return s.do(ctx, key, words)
	})
	if !isOver {
		return redis.NewCmdResult(nil, ctx.Err())
	}
	return reply
}

func (s *servers) reload(ctx context.Context) {
	if s.cluster != nil {
		s.cluster.ReloadState(ctx)
	}
}

// anew drops all idle connections of was: after a failover, each of them would have to time out.
func (n *node) anew(was *redis.Client) {
	last, now := n.renewed.Load(), time.Now().UnixNano()
	if now-last < int64(50*time.Millisecond) || !n.renewed.CompareAndSwap(last, now) {
		return
	}
	if n.servers.closed.Load() {
		return
	}
	if n.client.CompareAndSwap(was, n.newClient(&n.options)) {
		// Requests in progress may finish.
		time.AfterFunc(2*duration(machine.Patience), func() { was.Close() })
	}
}
