package rlock

import (
	"context"
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

// servers finds the primary of a key. All connections are the package's own: no hidden retries, no wait for a
// connection that other work of the program has taken.
type servers struct {
	cluster *redis.ClusterClient    // nil: one primary
	service atomic.Pointer[service] // nil: not asked yet
	closed  atomic.Bool
	mu      sync.Mutex
	nodes   map[string]*node
	lines   map[*line]bool // those that are in use
	rtt     atomic.Int64   // about how long a reply takes, in milliseconds
}

// failover is what go-redis shows instead of an address with Sentinel.
const failover = "FailoverClient"

// node is one primary; with Sentinel, the current one.
type node struct {
	name    string // address and database
	servers *servers
	isKnown atomic.Bool // it has said who it is, and closed no connection since
	dials   dials
	options redis.Options
	given   *redis.Client // has the hooks
	client  atomic.Pointer[redis.Client]
	renewed atomic.Int64

	wasPrimary atomic.Bool            // it has executed what only a primary does
	dialled    atomic.Pointer[string] // with Sentinel: the primary that was found last
	mu         sync.Mutex
	idle       []*line
}

func newServers(given redis.UniversalClient) (*servers, error) {
	s := &servers{nodes: map[string]*node{}, lines: map[*line]bool{}}
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
		n = &node{options: *given.Options(), given: given, servers: s}
		if addr != "" {
			n.options.Addr = addr
		}
		n.name = fmt.Sprint(n.options.Addr, "/", n.options.DB)
		n.options.MaxRetries, n.options.DialerRetries, n.options.MinIdleConns = -1, 1, 0
		// Each request has its own time, by its context. What suits the user's requests would cut ours short.
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

// newClient is a client of our own, with the hooks of the one that we were given, as they are now.
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
	// It may ask one server after the other, however long each of them is silent.
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

// redirection returns where a reply of n redirects us: an address, and whether only this once.
func (n *node) redirection(err error) (addr string, isAsk bool) {
	words := strings.Fields(fmt.Sprint(err))
	if word := code(err); (word == "MOVED" || word == "ASK") && len(words) == 3 {
		host, port, _ := net.SplitHostPort(words[2])
		if host == "" { // one that does not know where others are names only a port
			host, _, _ = net.SplitHostPort(n.options.Addr)
		}
		return net.JoinHostPort(host, port), word == "ASK"
	}
	return "", false
}

// isElsewhere says whether the primary of key is not, or no longer, where l leads.
func (s *servers) isElsewhere(ctx context.Context, key string, l *line) bool {
	n, err := s.locate(ctx, key)
	if err != nil || n != l.node {
		return err == nil
	}
	found, w := n.dialled.Load(), l.wire.Load()
	return found != nil && w != nil && w.RemoteAddr().String() != *found
}

// do asks the primary of key, follows redirections, and gives up after patience.
func (s *servers) do(ctx context.Context, patience time.Duration, key string, words []any) *redis.Cmd {
	if s.closed.Load() {
		return redis.NewCmdResult(nil, redis.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := s.locate(ctx, key)
	if err != nil {
		s.reload(ctx)
		return redis.NewCmdResult(nil, err)
	}
	client := n.client.Load()
	if client.PoolStats().TotalConns == 0 {
		if err := n.dials.ready(ctx); err != nil {
			s.reload(ctx)
			return redis.NewCmdResult(nil, n.known(err))
		}
	}
	sent := time.Now()
	cmd := n.judged(ctx, words, client.Do(ctx, words...))
	if !isBroken(cmd.Err()) && !isFault(cmd.Err()) {
		s.replied(millis(time.Since(sent)))
	}
	for range 3 {
		addr, isAsk := n.redirection(cmd.Err())
		if addr == "" {
			break
		}
		n = s.at(addr, n.given)
		client = n.client.Load()
		if isAsk {
			pipe := client.Pipeline()
			pipe.Do(ctx, "ASKING")
			cmd = pipe.Do(ctx, words...)
			_, _ = pipe.Exec(ctx)
		} else {
			s.reload(ctx)
			cmd = client.Do(ctx, words...)
		}
	}
	if isBroken(cmd.Err()) && !errors.Is(cmd.Err(), os.ErrDeadlineExceeded) {
		n.isKnown.Store(false)
	}
	if isBroken(cmd.Err()) || code(cmd.Err()) == "READONLY" {
		n.anew(client)
		s.reload(ctx)
	}
	return cmd
}

// replied is told how long a reply took. One fast reply disproves whatever slowed earlier ones: without that, waits after
// an outage would end long before their time.
func (s *servers) replied(took machine.Ms) {
	if rtt := s.rtt.Load(); took < rtt {
		s.rtt.Store(took)
	} else {
		s.rtt.Add((took - rtt) / 8)
	}
}

// heed returns what work does, and whether it was over before ctx: go-redis hears at most of deadlines.
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

// heed asks for a caller that may go away.
func (s *servers) heed(ctx context.Context, key string, words []any) *redis.Cmd {
	reply, isOver := heed(ctx, func() *redis.Cmd {
		return s.do(context.WithoutCancel(ctx), duration(machine.Reply), key, words)
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

// anew drops all idle connections of was: after a failover each of them would have to time out.
func (n *node) anew(was *redis.Client) {
	last, now := n.renewed.Load(), time.Now().UnixNano()
	if now-last < int64(50*time.Millisecond) || !n.renewed.CompareAndSwap(last, now) {
		return
	}
	if n.servers.closed.Load() {
		return
	}
	if n.client.CompareAndSwap(was, n.newClient(&n.options)) {
		// Requests under way may finish.
		time.AfterFunc(2*duration(machine.Patience), func() { was.Close() })
	}
}

// line is a dedicated connection, for one blocked wait or for one session.
type line struct {
	node   *node
	client *redis.Client
	conn   asker
	wire   atomic.Pointer[wire]
	ended  chan struct{} // closed when the connection is
	once   sync.Once
	asking sync.Mutex // go-redis must not close what it is asking on
}

// asker is a redis.Conn, or the redis.Client whose only connection it is.
type asker interface {
	Do(ctx context.Context, words ...any) *redis.Cmd
	Ping(ctx context.Context) *redis.StatusCmd
	Close() error
}

// line returns an idle connection to n, or a new one, which is open.
func (n *node) line(ctx context.Context) (*line, error) {
	for l := n.pop(); l != nil; l = n.pop() {
		if !l.isEnded() {
			return l, nil
		}
		l.kill()
	}
	if err := n.dials.ready(ctx); err != nil {
		return nil, n.known(err)
	}
	l := &line{node: n, ended: make(chan struct{})}
	options, dial := n.options, n.options.Dialer
	options.PoolSize, options.MaxActiveConns, options.ContextTimeoutEnabled = 1, 1, false
	options.ConnMaxIdleTime, options.ConnMaxLifetime = -1, -1 // it ends with what it is for
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if l.isEnded() || l.wire.Load() != nil {
			return nil, errors.New("rlock: the connection has ended")
		}
		raw, err := dial(ctx, network, addr)
		if err == nil && l.isEnded() {
			raw.Close()
			err = net.ErrClosed
		}
		if err != nil {
			return nil, err
		}
		w := &wire{Conn: raw, in: make(chan []byte, 1), line: l, closed: make(chan struct{})}
		l.wire.Store(w)
		go w.pump()
		return w, nil
	}
	l.client = n.newClient(&options)
	if l.conn = l.client.Conn(); options.StreamingCredentialsProvider != nil {
		l.conn = l.client // a redis.Conn panics where it would have to listen to such a provider
	}
	n.servers.mu.Lock()
	n.servers.lines[l] = true
	n.servers.mu.Unlock()
	if n.servers.closed.Load() {
		l.kill()
	}
	defer context.AfterFunc(ctx, l.kill)() // whatever it waits for
	l.asking.Lock()
	defer l.asking.Unlock()
	if err := l.conn.Ping(ctx).Err(); err != nil {
		l.kill()
		if ctx.Err() != nil { // it was closed for that reason
			err = unsent(errSilent)
		}
		return nil, n.known(err)
	}
	return l, nil
}

func (n *node) pop() *line {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.idle) == 0 {
		return nil
	}
	l := n.idle[len(n.idle)-1]
	n.idle = n.idle[:len(n.idle)-1]
	return l
}

// put keeps the connection for the next wait.
func (l *line) put(most int) {
	l.node.mu.Lock()
	defer l.node.mu.Unlock()
	if l.isEnded() || len(l.node.idle) >= most {
		go l.kill()
		return
	}
	l.node.idle = append(l.node.idle, l)
}

func (l *line) isEnded() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// send asks on this connection. The reply has no time limit; if the connection closes, it is an error.
func (l *line) send(words []any, asking bool) <-chan *redis.Cmd {
	answer := make(chan *redis.Cmd, 1)
	go func() {
		l.asking.Lock()
		defer l.asking.Unlock()
		ctx := context.Background()
		if asking {
			_ = l.conn.Do(ctx, "ASKING").Err()
		}
		reply := l.conn.Do(ctx, words...)
		asking, cancel := context.WithTimeout(ctx, duration(machine.Reply))
		defer cancel()
		answer <- l.node.judged(asking, words, reply)
	}()
	return answer
}

// kill closes the connection, whatever it waits for.
func (l *line) kill() {
	l.end()
	l.node.servers.mu.Lock()
	delete(l.node.servers.lines, l)
	l.node.servers.mu.Unlock()
	if w := l.wire.Load(); w != nil {
		w.Close()
	}
	go func() {
		l.asking.Lock()
		defer l.asking.Unlock()
		l.conn.Close()
		l.client.Close()
	}()
}

func (l *line) end() { l.once.Do(func() { close(l.ended) }) }

// wire reads ahead, so that the end of a session is noticed without a request.
type wire struct {
	net.Conn
	in     chan []byte
	rest   []byte
	line   *line
	err    error
	closed chan struct{}
	once   sync.Once
}

func (w *wire) pump() {
	defer close(w.in)
	for {
		some := make([]byte, 512)
		count, err := w.Conn.Read(some)
		if count > 0 {
			select {
			case w.in <- some[:count]:
			case <-w.closed:
				return
			}
		}
		if err != nil {
			w.err = err
			w.line.node.isKnown.Store(false)
			w.line.end()
			return
		}
	}
}

func (w *wire) Read(into []byte) (int, error) {
	if len(w.rest) == 0 {
		more, isOpen := <-w.in
		if !isOpen {
			if w.err == nil {
				return 0, net.ErrClosed
			}
			return 0, w.err
		}
		w.rest = more
	}
	count := copy(into, w.rest)
	w.rest = w.rest[count:]
	return count, nil
}

// Close ends the pump too.
func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	w.line.end()
	return w.Conn.Close()
}

// SetReadDeadline would end the pump; kill ends a wait.
func (w *wire) SetReadDeadline(time.Time) error { return nil }

// SetDeadline is for writing only.
func (w *wire) SetDeadline(at time.Time) error { return w.SetWriteDeadline(at) }
