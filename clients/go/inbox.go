package rlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// inbox is the subscription at one server, which receives the late replies of all requests.
type inbox struct {
	line     *line
	mu       sync.Mutex // guards what follows
	channels map[string]*channel
	ears     map[string]*ear
}

// channel is a subscription.
type channel struct {
	settled chan struct{} // closed when the server has answered
	err     error         // if there is one, it is no channel any more
}

// isUp says whether the channel is subscribed. The caller holds the mutex.
func (b *inbox) isUp(name string) bool {
	c := b.channels[name]
	if c == nil {
		return false
	}
	select {
	case <-c.settled:
		return true
	default:
		return false
	}
}

// ear waits for the message of one request.
type ear struct {
	box     *inbox
	channel string
	id      string
	came    chan arrival // has room for the only one
}

// unheard means that no message will come: the subscription has ended.
var unheard = arrival{in: machine.Input{Event: machine.Unheard}}

// hush forgets the request.
func (e *ear) hush() {
	if e != nil {
		e.box.mu.Lock()
		defer e.box.mu.Unlock()
		delete(e.box.ears, e.id)
	}
}

// tags has, for each slot of a Cluster, the smallest number that hashes to it.
var tags = sync.OnceValue(func() (tags [16384]string) {
	for number, left := 0, len(tags); left > 0; number++ {
		text := strconv.Itoa(number)
		if at := &tags[slot(text)]; *at == "" {
			*at = text
			left--
		}
	}
	return tags
})

// channel is where messages about key go: in a Cluster, it is in the slot of key.
func (s *servers) channel(key string) string {
	if s.cluster == nil && !s.isSharded.Load() {
		return "rlock:tell:" + s.name()
	}
	return fmt.Sprintf("rlock:tell:{%s}:%s", tags()[slot(key)], s.name())
}

// inbox returns the inbox of n: it is opened when it is first needed, and again after it has ended.
func (n *node) inbox(ctx context.Context) (*inbox, error) {
	select {
	case n.opens <- struct{}{}:
		defer func() { <-n.opens }()
	case <-ctx.Done():
		return nil, unsent(errSilent)
	}
	if b := n.open(); b != nil {
		return b, nil
	}
	n.closeInbox(machine.Forever) // it leads to what was the primary before a failover
	b := &inbox{channels: map[string]*channel{}, ears: map[string]*ear{}}
	var err error
	if b.line, err = n.newLine(ctx, b.takes); err != nil {
		return nil, err
	}
	n.box.Store(b)
	return b, nil
}

// open returns the inbox, or nil if none is open.
func (n *node) open() *inbox {
	if b := n.box.Load(); b != nil && !b.line.isEnded() && !n.isElsewhere(b.line) {
		return b
	}
	return nil
}

// closeInbox is called when n is no longer the primary, or has been silent since then. Requests that wait there are
// sent again.
func (n *node) closeInbox(since machine.Ms) {
	if b := n.box.Load(); b != nil && b.line.lastHeard() < since {
		b.line.kill()
	}
}

// subscribe returns when the server has confirmed the subscription.
func (b *inbox) subscribe(ctx context.Context, name string, isAsk bool) error {
	b.mu.Lock()
	c := b.channels[name]
	if c == nil {
		c = &channel{settled: make(chan struct{})}
		b.channels[name] = c
		go func() {
			err := b.line.do([]any{"SSUBSCRIBE", name}, isAsk).Err()
			if code(err) == "NOPERM" {
				err = fmt.Errorf("who waits needs +ssubscribe and the channels &rlock:tell:*: %w", err)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if c.err = err; c.err != nil && b.channels[name] == c {
				delete(b.channels, name)
			}
			close(c.settled)
		}()
	}
	b.mu.Unlock()
	b.line.watch()
	select {
	case <-c.settled:
		return c.err
	case <-ctx.Done():
		return errSilent
	}
}

// lose ends the waits on a channel, or on all channels, because it is no longer subscribed.
func (b *inbox) lose(name string, isAll bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, e := range b.ears {
		if isAll || e.channel == name {
			delete(b.ears, id)
			e.came <- unheard
		}
	}
	if delete(b.channels, name); isAll {
		clear(b.channels)
	}
}

// takes handles what the server sends, and says whether it was a message, and not a reply.
func (b *inbox) takes(said any) bool {
	words, _ := said.([]any)
	switch said := said.(type) {
	case push:
		words = said
	case error:
		b.lose("", true)
	}
	if len(words) < 3 {
		return false
	}
	name, _ := words[1].(string)
	text, _ := words[2].(string)
	switch words[0] {
	case "sunsubscribe": // the slot has moved
		b.lose(name, false)
		return true
	case "smessage":
		id, outcome, _ := strings.Cut(text, " ")
		b.mu.Lock()
		defer b.mu.Unlock()
		if e := b.ears[id]; e != nil && e.channel == name {
			delete(b.ears, id)
			e.came <- messageOf(outcome)
		}
		return true
	}
	return false
}

// messageOf reads the outcome in a message.
func messageOf(text string) arrival {
	kind, rest, _ := strings.Cut(text, " ")
	word, owner, _ := strings.Cut(rest, " ")
	number, _ := strconv.ParseInt(word, 10, 64)
	ended := machine.Outcome{Ending: machine.Nil}
	m := arrival{owner: owner}
	switch kind {
	case "token", "holder":
		ended = machine.Outcome{Ending: machine.Token, Token: number}
	case "renewed":
		ended = machine.Outcome{Ending: machine.Token, Token: 1}
	case "error":
		ended, m.err = machine.Outcome{Ending: machine.Refused, Code: word}, replyError(rest)
	}
	m.in = machine.Input{Event: machine.Message, Outcome: ended}
	return m
}

// heardAt is where the messages about a key are received, and where the requests that they answer go.
type heardAt struct {
	box     *inbox
	channel string
	isAsk   bool
}

// ear receives the late reply to the next request. It is registered before the request is sent: the message comes on
// another connection, and may overtake the reply. Its id is new, so messages for an earlier request are ignored.
func (l *Locker) ear(at heardAt) *ear {
	b := at.box
	b.line.watch()
	e := &ear{box: b, channel: at.channel, id: strconv.FormatUint(l.requests.Add(1), 16), came: make(chan arrival, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ears[e.id] = e; !b.isUp(e.channel) {
		e.came <- unheard
		delete(b.ears, e.id)
	}
	return e
}

// heard is the place where messages about key are already received; if a redirection has named a server, only there.
func (s *servers) heard(key string, at place) (heard heardAt, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if b := n.open(); b != nil && (at.node == nil || at == place{node: n}) {
			channel := s.channel(key)
			b.mu.Lock()
			is = b.isUp(channel)
			b.mu.Unlock()
			if is {
				return heardAt{box: b, channel: channel}, true
			}
		}
	}
	return heard, false
}

// listen subscribes to the channel of key, at the primary of key unless a redirection has named another one.
func (s *servers) listen(key string, at place, by machine.Ms) arrival {
	ctx, cancel := context.WithTimeout(context.Background(), remaining(by))
	defer cancel()
	if heard, is := s.heard(key, at); is {
		return s.listening(heard)
	}
	n, err := at.node, error(nil)
	if n == nil {
		n, err = s.locate(ctx, key)
	}
	for hops := 0; err == nil; hops++ {
		var b *inbox
		channel := s.channel(key)
		if b, err = n.inbox(ctx); err == nil {
			err = b.subscribe(ctx, channel, at.isAsk)
		}
		if err == nil {
			return s.listening(heardAt{b, channel, at.isAsk})
		}
		addr, isAsk := n.redirection(err)
		if addr == "" || hops == 3 {
			break
		}
		s.isSharded.Store(true)
		s.reload(ctx)
		n, at.isAsk, err = s.at(addr, n.given), isAsk, nil
	}
	s.reload(ctx)
	return endedBy(redis.NewCmdResult(nil, err))
}

func (s *servers) listening(heard heardAt) arrival {
	return arrival{in: machine.Input{Event: machine.Listening, N: s.rtt.Load()}, heard: heard}
}
