package rlock

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

var began = time.Now()

func sinceStart() int64 { return int64(time.Since(began)) }

func now() machine.Ms { return nanos() / int64(time.Millisecond) }

// century is as good as for ever, and can be counted in nanoseconds.
const century = 100 * 365 * 24 * time.Hour

// remaining is how long it is until then.
func remaining(at machine.Ms) time.Duration {
	if at-now() > millis(century) {
		return century
	}
	return time.Duration(at*int64(time.Millisecond) - nanos())
}

func duration(some machine.Ms) time.Duration { return time.Duration(some) * time.Millisecond }

func millis(some time.Duration) machine.Ms { return some.Milliseconds() }

// outcome is how a request ended.
func outcome(reply *redis.Cmd) (machine.Outcome, error) {
	token, err := reply.Int64()
	var timeout interface{ Timeout() bool }
	switch word := code(err); {
	case err == nil:
		return machine.Outcome{Ending: machine.Token, Token: token}, nil
	case err == redis.Nil: // and not that of a Sentinel, which does not know the name
		return machine.Outcome{Ending: machine.Nil}, nil
	case isUnsent(err) && word == "":
		return machine.Outcome{Ending: machine.Unsent}, err
	case word != "":
		return machine.Outcome{Ending: machine.Refused, Code: word}, err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return machine.Outcome{Ending: machine.Silent}, err
	}
	return machine.Outcome{Ending: machine.Broken}, err
}

// words is a request without a way to wait.
func (o *options) words(key string, depth int) []any {
	if o.group != nil {
		return o.group.acquire(o)
	}
	words := []any{"RLOCK.ACQUIRE", key, o.owner, o.mode}
	if o.limitIsSet {
		words = append(words, "LIMIT", o.limit)
	}
	words = append(words, "LEASE", o.lease.Milliseconds(), "DEPTH", depth)
	if o.upgrade {
		words = append(words, "UPGRADE")
	}
	return o.acked(words)
}

// acked adds how many replicas must acknowledge it.
func (o *options) acked(words []any) []any {
	if o.acksSet {
		words = append(words, "ACKS", o.acks)
	}
	return words
}

// waiting adds how long to wait, and beside how many others.
func (o *options) waiting(words []any, way string, wait machine.Ms) []any {
	words = append(words, way, wait)
	if o.maxQueueIs {
		words = append(words, "MAXQUEUE", o.maxQueue)
	}
	return words
}

// longestBlock is the longest time limit that the server takes; 0 is for ever.
const longestBlock machine.Ms = 7 * 24 * 60 * 60 * 1000

// alone is a request on a connection of its own.
func (o *options) alone(key string, depth int, op machine.Output) []any {
	words := o.words(key, depth)
	if op.Session {
		words = append(words, "SESSION")
	}
	if op.Blocks {
		if op.Block > longestBlock { // the wait ends in time by itself
			op.Block = 0
		}
		words = o.waiting(words, "BLOCK", op.Block)
	}
	return words
}

// send asks on a shared connection.
func (l *Locker) send(key string, o *options, depth int, op machine.Output) arrival {
	servers, words := l.servers, []any{"", key, o.owner}
	switch op.Request {
	case machine.Acquire:
		servers, words = l.serversFor(o), o.words(key, depth)
	case machine.Queue:
		servers, words = l.serversFor(o), o.waiting(o.words(key, depth), "QUEUE", machine.Ticket)
	case machine.Renew:
		servers = l.serversFor(o)
		words = o.acked(append(words, o.mode, "LEASE", o.lease.Milliseconds(), "TOKEN", op.Token))
	case machine.ReleaseDown:
		words = append(words, o.mode, "TOKEN", op.Token, "DEPTH", op.Depth)
	case machine.Info:
		words = []any{"", key, "HOLDERS", 10000, "WAITERS", 0}
	}
	if words[0] == "" {
		words[0] = commands[op.Request]
	}
	if g := o.group; g != nil {
		switch op.Request {
		case machine.Info:
			ended, err := outcome(l.token(o, op.By))
			return arrival{in: machine.Input{Event: machine.Ended, Outcome: ended}, err: err}
		case machine.Renew:
			words = o.acked(g.words("RLOCK.MRENEW", o.owner, "LEASE", o.lease.Milliseconds(), "TOKEN", op.Token))
		case machine.ReleaseDown:
			words = g.words("RLOCK.MRELEASE", o.owner, "TOKEN", op.Token)
		}
	}
	reply := servers.do(context.Background(), remaining(op.By), key, words)
	if o.group != nil && op.Request == machine.ReleaseDown {
		reply = o.group.released(reply)
	}
	if op.Request == machine.Info && reply.Err() == nil {
		reply = tokenIn(reply.Val(), o)
	}
	ended, err := outcome(reply)
	return arrival{in: machine.Input{Event: machine.Ended, Outcome: ended}, err: err}
}

var commands = map[machine.Request]string{
	machine.AskPlace: "RLOCK.PLACE", machine.Renew: "RLOCK.RENEW", machine.CancelWait: "RLOCK.CANCEL",
	machine.Info: "RLOCK.INFO", machine.ReleaseDown: "RLOCK.RELEASE",
}

// tokenIn is the token of this owner's hold in a reply of RLOCK.INFO, or nil.
func tokenIn(info any, o *options) *redis.Cmd {
	if token, isHeld := field(found(info, o), "token").(int64); isHeld {
		return redis.NewCmdResult(token, nil)
	}
	return redis.NewCmdResult(nil, redis.Nil)
}

// found is what the server says of the owner's hold, nil if there is none.
func found(info any, o *options) any {
	wanted := o.mode
	if o.group != nil { // it is looked for at the first key
		wanted = o.group.parts[0].mode
	}
	holders, _ := field(info, "holders").([]any)
	for _, holder := range holders {
		mode, _ := field(holder, "mode").(string)
		if field(holder, "owner") == o.owner && strings.EqualFold(mode, wanted) {
			return holder
		}
	}
	return nil
}

// field returns the value under name, of a map or of a list of names and values.
func field(reply any, name string) any {
	switch reply := reply.(type) {
	case map[any]any:
		return reply[name]
	case []any:
		for at := 0; at+1 < len(reply); at += 2 {
			if reply[at] == name {
				return reply[at+1]
			}
		}
	}
	return nil
}

// look asks whoever decides now whether the wait on line has its place.
func (l *Locker) look(key string, o *options, line *line, by machine.Ms) arrival {
	ctx, cancel := context.WithTimeout(context.Background(), remaining(by))
	defer cancel()
	in := machine.Input{Event: machine.Place}
	ask := func(words ...any) (any, error) { return l.servers.do(ctx, remaining(by), key, words).Result() }
	switch _, err := ask("RLOCK.PLACE", key, o.owner); {
	case err == nil:
		in.Yes = true
	case errors.Is(err, redis.Nil):
		if o.acks > 0 { // what is not acknowledged yet has no place
			info, _ := ask("RLOCK.INFO", key, "HOLDERS", 10000)
			in.Yes = field(found(info, o), "acks") == "pending"
		}
	default: // is that server still the primary?
		in.IsUnknown = !l.servers.isElsewhere(ctx, key, line)
	}
	return arrival{in: in}
}

// place is where a reply has redirected to.
type place struct {
	node  *node
	isAsk bool // only this once
}

// own is a connection of its own, for one blocked wait or one session, and the reply on it.
type own struct {
	line   *line
	answer <-chan *redis.Cmd
	next   place
	isAsk  bool
}

func (w *own) ask(words []any) { w.answer = w.line.send(words, w.isAsk) }

// keep and drop may come again: a wait that was silent to its end is dropped, and read once more while it is undone.
func (w *own) keep(most int) {
	if w.line != nil {
		w.line.put(most)
	}
	w.line, w.answer = nil, nil
}

func (w *own) drop() {
	if w.line != nil {
		w.line.kill()
	}
	w.line, w.answer = nil, nil
}

// heard is how the request on it ended.
func (l *Locker) heard(w *own, reply *redis.Cmd) (machine.Outcome, error) {
	w.answer = nil
	ended, err := outcome(reply)
	if addr, isAsk := w.line.node.redirection(err); addr != "" {
		w.next = place{l.servers.at(addr, w.line.node.given), isAsk}
	}
	if ended.IsUnknown() || ended.Code == "MOVED" {
		go l.servers.reload(context.Background())
	}
	return ended, err
}

// open is an own connection: an idle or a new one.
func (l *Locker) open(key string, n *node, by machine.Ms) arrival {
	ctx, cancel := context.WithTimeout(context.Background(), remaining(by))
	defer cancel()
	var err error
	if n == nil {
		n, err = l.servers.locate(ctx, key)
	}
	var line *line
	if err == nil {
		line, err = n.line(ctx)
	}
	if err == nil {
		return arrival{in: machine.Input{Event: machine.Opened, N: l.servers.rtt.Load()}, line: line}
	}
	l.servers.reload(ctx)
	ended, _ := outcome(redis.NewCmdResult(nil, err))
	if ended.Ending != machine.Refused {
		ended = machine.Outcome{Ending: machine.Unsent}
	}
	return arrival{in: machine.Input{Event: machine.Ended, Outcome: ended}, err: err}
}
