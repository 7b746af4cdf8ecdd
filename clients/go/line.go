package rlock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// line is a dedicated connection, of one session or of the messages of one server. go-redis opens it; afterward, this
// package reads from it, so that its end is noticed without a request.
type line struct {
	node   *node
	client *redis.Client
	conn   interface { // a redis.Conn, or the redis.Client whose only connection it is
		Ping(context.Context) *redis.StatusCmd
		Close() error
	}
	ended  chan struct{} // closed when the connection is
	once   sync.Once
	asking sync.Mutex // go-redis must not close what it is asking on

	writing sync.Mutex // so that all is written in the order of asked
	mu      sync.Mutex // guards what follows
	raw     net.Conn
	asked   []chan<- *redis.Cmd // where the replies go, in order
	isOver  bool
	heard   machine.Ms // when the server said something last
	pinged  machine.Ms // when it was asked whether it is there; 0: it has said something since
}

// line returns an idle connection to n, or opens a new one.
func (n *node) line(ctx context.Context) (*line, error) {
	if l := n.pop(); l != nil {
		return l, nil
	}
	return n.newLine(ctx, func(said any) bool {
		_, isPush := said.(push)
		return isPush
	})
}

func (n *node) pop() *line {
	n.mu.Lock()
	defer n.mu.Unlock()
	for last := len(n.idle) - 1; last >= 0; last-- {
		l := n.idle[last]
		if n.idle = n.idle[:last]; !l.isEnded() && !n.isElsewhere(l) {
			return l
		}
		go l.kill()
	}
	return nil
}

// newLine opens a connection. It calls takes with everything that it reads: takes returns true for a message, and false
// for a reply.
func (n *node) newLine(ctx context.Context, takes func(any) bool) (*line, error) {
	if err := n.dials.ready(ctx); err != nil {
		return nil, n.known(err)
	}
	l := &line{node: n, ended: make(chan struct{}), heard: now()}
	options, dial := n.options, n.options.Dialer
	options.PoolSize, options.MaxActiveConns, options.ContextTimeoutEnabled = 1, 1, false
	options.ConnMaxIdleTime, options.ConnMaxLifetime = -1, -1 // it ends with what it is for
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if l.isEnded() || l.socket() != nil {
			return nil, errors.New("rlock: the connection has ended")
		}
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.raw = raw; l.isEnded() {
			raw.Close()
		}
		return raw, nil
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
	go l.read(takes)
	return l, nil
}

// socket is nil before the connection is dialed.
func (l *line) socket() net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.raw
}

// mostIdle is how many idle connections are kept for further sessions.
const mostIdle = 16

// put keeps the connection for another session.
func (l *line) put() {
	l.node.mu.Lock()
	defer l.node.mu.Unlock()
	if l.isEnded() || len(l.node.idle) >= mostIdle {
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

// kill closes the connection, whatever waits for it.
func (l *line) kill() {
	l.once.Do(func() { close(l.ended) })
	l.node.servers.mu.Lock()
	delete(l.node.servers.lines, l)
	l.node.servers.mu.Unlock()
	if raw := l.socket(); raw != nil {
		raw.Close()
	}
	go func() {
		l.asking.Lock()
		defer l.asking.Unlock()
		l.conn.Close()
		l.client.Close()
	}()
}

// do sends a request through the hooks. The reply has no time limit; if the connection closes, the reply is an error.
func (l *line) do(words []any, isAsk bool) *redis.Cmd {
	asked := redis.NewCmd(context.Background(), words...)
	ask := func(_ context.Context, cmd redis.Cmder) error {
		if isAsk {
			<-l.ask("ASKING")
		}
		sent := now()
		reply := <-l.ask(words...)
		if !isBroken(reply.Err()) {
			l.node.servers.replied(now() - sent)
		}
		asked.SetVal(reply.Val())
		cmd.SetErr(reply.Err())
		return reply.Err()
	}
	_ = through{hooks: hooked(l.node.given)}.ProcessHook(ask)(context.Background(), asked)
	return asked
}

// errGone is the reason why nothing was sent.
var errGone = unsent(errors.New("the connection has ended"))

// ask sends a request, and returns the channel on which its reply comes.
func (l *line) ask(words ...any) <-chan *redis.Cmd {
	reply := make(chan *redis.Cmd, 1)
	text := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		word := fmt.Sprint(word)
		text = fmt.Appendf(text, "$%d\r\n%s\r\n", len(word), word)
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	if l.isOver {
		reply <- redis.NewCmdResult(nil, errGone)
	} else {
		l.asked = append(l.asked, reply)
	}
	l.mu.Unlock()
	_ = l.raw.SetWriteDeadline(time.Now().Add(duration(machine.Reply)))
	if _, err := l.raw.Write(text); err != nil {
		l.kill()
	}
	return reply
}

// watch is called at least once per LOOKS while anybody waits: it asks a silent server whether it still answers.
func (l *line) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch at := now(); {
	case l.pinged > 0 && at-l.pinged >= machine.Reply:
		time.AfterFunc(duration(machine.Late), func() { // a process that slept reads first what lies in its socket
			if l.lastHeard() < at {
				l.kill()
			}
		})
	case l.pinged == 0 && at-l.heard >= machine.Looks:
		l.pinged = at
		go l.ask("PING")
	}
}

func (l *line) lastHeard() machine.Ms {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// read reads until the connection ends.
func (l *line) read(takes func(any) bool) {
	in := bufio.NewReader(l.socket())
	said, err := readOne(in)
	for ; err == nil; said, err = readOne(in) {
		isReply := !takes(said)
		l.mu.Lock()
		if l.heard, l.pinged = now(), 0; isReply && len(l.asked) > 0 {
			reply := redis.NewCmdResult(said, nil)
			if failure, is := said.(replyError); is {
				reply = redis.NewCmdResult(nil, failure)
			} else if said == nil {
				reply = redis.NewCmdResult(nil, redis.Nil)
			}
			l.asked[0] <- reply
			l.asked = l.asked[1:]
		}
		l.mu.Unlock()
	}
	l.node.isKnown.Store(false)
	l.kill()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.isOver = true; len(l.asked) > 0; l.asked = l.asked[1:] {
		l.asked[0] <- redis.NewCmdResult(nil, err)
	}
	takes(err)
}

// push is data that RESP3 marks as not being a reply.
type push []any

// readOne reads one reply or message of a dedicated connection, in RESP2 or RESP3.
func readOne(in *bufio.Reader) (any, error) {
	line, err := in.ReadString('\n')
	if err != nil || len(line) < 3 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	text := line[1 : len(line)-2]
	number, _ := strconv.ParseInt(text, 10, 64)
	switch line[0] {
	case '+':
		return text, nil
	case '-':
		return replyError(text), nil
	case ':':
		return number, nil
	case '_':
		return nil, nil
	case '$':
		if number < 0 {
			return nil, nil
		}
		bytes := make([]byte, number+2)
		_, err = io.ReadFull(in, bytes)
		return string(bytes[:number]), err
	case '*', '>':
		words := make([]any, max(0, number))
		for at := range words {
			if words[at], err = readOne(in); err != nil {
				return nil, err
			}
		}
		if line[0] == '>' {
			return push(words), nil
		}
		return words, nil
	}
	return nil, fmt.Errorf("a reply begins with %q", line[0])
}
