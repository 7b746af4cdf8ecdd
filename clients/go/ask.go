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

// century is practically forever, and still fits into nanoseconds.
const century = 100 * 365 * 24 * time.Hour

// remaining is the time until then.
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
	if reply.Err() == nil && reply.Val() == "WAITING" {
		return machine.Outcome{Ending: machine.Waiting}, nil
	}
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

// acquire is the request for the lock. Its late reply is received by ear, if there is one.
func (o *options) acquire(key string, depth int, op machine.Output, ear *ear) []any {
	var words []any
	if o.group != nil {
		words = o.group.acquire(o)
	} else {
		words = []any{"RLOCK.ACQUIRE", key, o.owner, o.mode}
		if o.limitIsSet {
			words = append(words, "LIMIT", o.limit)
		}
		words = append(words, "LEASE", o.lease.Milliseconds(), "DEPTH", depth)
		if o.upgrade {
			words = append(words, "UPGRADE")
		}
	}
	if op.Session {
		words = append(words, "SESSION")
	}
	if op.Blocks {
		if op.Block > longestBlock { // the wait ends in time by itself
			op.Block = 0
		}
		words = append(words, "BLOCK", op.Block)
		if o.maxQueueIs {
			words = append(words, "MAXQUEUE", o.maxQueue)
		}
	}
	return o.late(words, ear)
}

// late adds the options ACKS and TELL: how many replicas must acknowledge, and where a late reply goes.
func (o *options) late(words []any, ear *ear) []any {
	if o.acksSet {
		words = append(words, "ACKS", o.acks)
	}
	if ear != nil {
		words = append(words, "TELL", ear.channel, ear.id)
	}
	return words
}

// longestBlock is the longest time limit that the server accepts; 0 means forever.
const longestBlock machine.Ms = 7 * 24 * 60 * 60 * 1000

// isLate says whether the reply to a request may be a message.
func (o *options) isLate(op machine.Output) bool {
	return op.Blocks || o.acks > 0 && (op.Act == machine.AskAlone || op.Request == machine.Acquire || op.Request == machine.Renew)
}

// send sends a request on a shared connection. A request whose reply may be a message goes to the server whose messages
// are received.
func (l *Locker) send(key string, o *options, depth int, op machine.Output, at heardAt, ear *ear) arrival {
	ctx, cancel := context.WithTimeout(context.Background(), remaining(op.By))
	defer cancel()
	words, g, lease := []any(nil), o.group, func() []any { return []any{"LEASE", o.lease.Milliseconds(), "TOKEN", op.Token} }
	switch {
	case op.Request == machine.Acquire:
		words = o.acquire(key, depth, op, ear)
	case op.Request == machine.Renew && g != nil:
		words = o.late(g.words("RLOCK.MRENEW", o.owner, lease()...), ear)
	case op.Request == machine.Renew:
		words = o.late(append([]any{"RLOCK.RENEW", key, o.owner, o.mode}, lease()...), ear)
	case op.Request == machine.ReleaseDown && g != nil:
		return endedBy(g.released(l.servers.do(ctx, key, g.words("RLOCK.MRELEASE", o.owner, "TOKEN", op.Token))))
	case op.Request == machine.ReleaseDown:
		words = []any{"RLOCK.RELEASE", key, o.owner, o.mode, "TOKEN", op.Token, "DEPTH", op.Depth}
	case op.Request == machine.Info:
		return endedBy(l.token(ctx, key, o))
	default:
		words = []any{"RLOCK.CANCEL", key, o.owner}
	}
	if ear != nil {
		return l.sendTo(ctx, at, words)
	}
	return endedBy(l.servers.do(ctx, key, words))
}

func endedBy(reply *redis.Cmd) arrival {
	outcome, err := outcome(reply)
	return arrival{in: machine.Input{Event: machine.Ended, Outcome: outcome}, err: err, reply: reply}
}

// sendTo sends the request to the server whose late replies are received. The attempt follows a redirection itself, since it
// must subscribe there first.
func (l *Locker) sendTo(ctx context.Context, at heardAt, words []any) arrival {
	n := at.box.line.node
	reply, _ := l.servers.ask(ctx, place{n, at.isAsk}, words)
	arrived := l.servers.noted(n, endedBy(reply))
	switch {
	case arrived.next.node != nil && !arrived.next.isAsk:
		at.box.lose(at.channel, false)
	case arrived.in.Outcome.Ending == machine.Waiting && n.isElsewhere(at.box.line): // nobody listens at the new primary
		n.closeInbox(machine.Forever)
	}
	return arrived
}

// askAlone asks on its own connection.
func (l *Locker) askAlone(own ownConn, words []any) arrival {
	n := own.line.node
	reply := own.line.do(words, own.isAsk)
	ctx, cancel := context.WithTimeout(context.Background(), duration(machine.Reply))
	defer cancel()
	arrived := l.servers.noted(n, endedBy(n.judged(ctx, words, reply)))
	arrived.in.Event = machine.Own
	if outcome := arrived.in.Outcome; outcome.IsUnknown() || outcome.Code == "MOVED" {
		go l.servers.reload(context.Background())
	}
	return arrived
}

// noted returns how a request to n ended, and remembers where it was redirected to.
func (s *servers) noted(n *node, arrived arrival) arrival {
	switch code := &arrived.in.Outcome.Code; *code {
	case "MOVED", "ASK":
		addr, isAsk := n.redirection(arrived.err)
		arrived.next = place{s.at(addr, n.given), isAsk}
	case "READONLY":
		n.closeInbox(machine.Forever)
	case "CROSSSLOT": // n is one of a Cluster, where a channel is in the slot of the key
		if s.cluster == nil && !s.isSharded.Swap(true) {
			*code = "TRYAGAIN"
		}
	}
	return arrived
}

// token asks for the token of the owner's hold. One of several locks may have ended by itself.
func (l *Locker) token(ctx context.Context, key string, o *options) (reply *redis.Cmd) {
	for _, one := range o.parts(key) {
		reply = l.servers.do(ctx, one.key, []any{"RLOCK.INFO", one.key, "HOLDERS", 10000, "WAITERS", 0})
		if reply.Err() != nil {
			return reply
		}
		holders, _ := field(reply.Val(), "holders").([]any)
		for _, holder := range holders {
			mode, _ := field(holder, "mode").(string)
			if field(holder, "owner") == o.owner && strings.EqualFold(mode, one.mode) {
				return redis.NewCmdResult(field(holder, "token"), nil)
			}
		}
	}
	return redis.NewCmdResult(nil, redis.Nil)
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

// open opens a dedicated connection, or takes an idle one. It leads to the server that the last redirection named.
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
		return arrival{in: machine.Input{Event: machine.Opened}, line: line}
	}
	l.servers.reload(ctx)
	failed := endedBy(redis.NewCmdResult(nil, err))
	if outcome := &failed.in.Outcome; outcome.Ending != machine.Refused {
		outcome.Ending = machine.Unsent
	}
	return failed
}
