package rlock

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// The hooks of the user's client see the requests of this package, which has connections of its own. Each request
// passes through a Conn of that client, which has copies of its hooks. After the last one, lastHook sends it on the
// connection of this package.

// hooked returns a Conn with the current hooks of client. Nothing is ever sent on it, so it opens no connection.
func hooked(client *redis.Client) *redis.Conn {
	conn := client.Conn()
	conn.AddHook(lastHook{})
	return conn
}

// hookKey is the context key for the hook that sends the request once the user's hooks are done.
type hookKey struct{}

// through is a hook of this package's client that makes its requests pass through the hooks of the user's client.
type through struct {
	lastHook
	hooks *redis.Conn
}

func (t through) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return t.hooks.Process(context.WithValue(ctx, hookKey{}, next), cmd)
	}
}

// lastHook runs after all hooks of the user, and continues with this package's request.
type lastHook struct{}

func (lastHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (lastHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if goOn, isOurs := ctx.Value(hookKey{}).(redis.ProcessHook); isOurs {
			return goOn(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (lastHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
