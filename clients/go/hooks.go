package rlock

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// The hooks of the client that we were given see our requests, which have connections of their own. A request passes
// through a Conn of that client, which has copies of its hooks; behind the last one, it comes back to ours.

// hooked has the hooks of client, as they are now. Nothing is ever sent by it, so it has no connection.
func hooked(client *redis.Client) *redis.Conn {
	conn := client.Conn()
	conn.AddHook(back{})
	return conn
}

type ours struct{}

// through makes requests of our client pass through the hooks of another one.
type through struct {
	back
	hooks *redis.Conn
}

func (t through) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return t.hooks.Process(context.WithValue(ctx, ours{}, next), cmd)
	}
}

// back is behind the last hook.
type back struct{}

func (back) DialHook(next redis.DialHook) redis.DialHook { return next }

func (back) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if goOn, isOurs := ctx.Value(ours{}).(redis.ProcessHook); isOurs {
			return goOn(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (back) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
