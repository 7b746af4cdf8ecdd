package rlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// turns receives, over one subscription per server, whose ticket has its turn. That is a hint; polling goes on.
type turns struct {
	servers *servers
	mu      sync.Mutex
	perNode map[*node]*listener
}

// idles is how long a subscription stays when nobody listens: go-redis connects it anew for as long as it is there, also
// to a server that is gone for good.
const idles = 3 * time.Second

type listener struct {
	node   *node
	client *redis.Client
	pubsub *redis.PubSub
	who    map[string]map[chan struct{}]bool
}

// published is an owner's name as the server publishes it: its very bytes, but for NUL, which an event cannot carry.
func published(owner string) string { return strings.ReplaceAll(owner, "\x00", `\x00`) }

// turn is where an owner's turn is heard of, until hush.
type turn struct {
	came <-chan struct{}
	node *node
	stop func()
}

func (t turn) hush() {
	if t.stop != nil {
		t.stop()
	}
}

// listen reports the turns of owner at the primary of key. Who listened there before goes on.
func (t *turns) listen(key, owner string, before turn, by machine.Ms) arrival {
	ctx, cancel := context.WithTimeout(context.Background(), remaining(by))
	defer cancel()
	heard := machine.Input{Event: machine.Listening}
	n, err := t.servers.locate(ctx, key)
	if err == nil && n == before.node {
		return arrival{in: heard, turn: before}
	}
	before.hush()
	came := make(chan struct{}, 1)
	if err != nil { // asking goes on without it
		return arrival{in: heard, err: err}
	}
	channel := fmt.Sprintf("__keyevent@%d__:rlock.turn:%s", n.options.DB, published(owner))
	l, isNew := t.add(n, channel, came)
	if l == nil {
		return arrival{in: heard}
	}
	stop := func() {
		if t.remove(l, channel, came) {
			go l.pubsub.Unsubscribe(context.Background(), channel)
		}
	}
	if isNew {
		_ = l.pubsub.Subscribe(ctx, channel) // not under the mutex: it may take its time
	}
	return arrival{in: heard, turn: turn{came, n, stop}}
}

func (t *turns) add(n *node, channel string, turn chan struct{}) (l *listener, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l = t.perNode[n]
	if l == nil && t.servers.closed.Load() {
		return nil, false
	}
	if l == nil {
		options := n.options
		// go-redis connects a subscription anew without any other limit, and Close waits for that.
		options.ReadTimeout, options.WriteTimeout = duration(machine.Reply), duration(machine.Reply)
		client := redis.NewClient(&options)
		l = &listener{n, client, client.Subscribe(context.Background()), map[string]map[chan struct{}]bool{}}
		t.perNode[n] = l
		go t.hear(l)
	}
	if isNew = l.who[channel] == nil; isNew {
		l.who[channel] = map[chan struct{}]bool{}
	}
	l.who[channel][turn] = true
	return l, isNew
}

func (t *turns) remove(l *listener, channel string, turn chan struct{}) (wasLast bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(l.who[channel], turn)
	if wasLast = len(l.who[channel]) == 0; wasLast {
		delete(l.who, channel)
	}
	if len(l.who) == 0 {
		time.AfterFunc(idles, func() { t.rest(l) })
	}
	return wasLast
}

// rest ends a listener to which nobody listens.
func (t *turns) rest(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(l.who) == 0 && t.perNode[l.node] == l {
		delete(t.perNode, l.node)
		go l.close()
	}
}

func (t *turns) hear(l *listener) {
	for message := range l.pubsub.Channel() {
		t.mu.Lock()
		for turn := range l.who[message.Channel] {
			select {
			case turn <- struct{}{}:
			default: // told already
			}
		}
		t.mu.Unlock()
	}
}

// close does not wait for a subscription that is just being connected to a server that says nothing.
func (t *turns) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, l := range t.perNode {
		go l.close()
		delete(t.perNode, n)
	}
}

func (l *listener) close() {
	l.pubsub.Close()
	l.client.Close()
}
