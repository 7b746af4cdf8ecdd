package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"rlock.example/rlock"
)

func address() string { return "127.0.0.1:" + os.Getenv("PEER_PORT") }

// viaRedsync is a mutex of redsync on one server. All contenders of a process share one client and its pool.
type viaRedsync struct{ mutex *redsync.Mutex }

func openRedsync(ctx context.Context, key string) (func() (handle, error), error) {
	client := redis.NewClient(&redis.Options{Addr: address()})
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, err
	}
	locks := redsync.New(goredis.NewPool(client))
	return func() (handle, error) { return viaRedsync{locks.NewMutex(key)}, nil }, nil
}

func (v viaRedsync) acquire(ctx context.Context) error {
	err := v.mutex.LockContext(ctx)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) || errors.Is(err, ownTimeout) {
		return errGaveUp
	}
	return err
}

// A lock that was not released in time ends with its lease, and the other contenders wait that long.
func (v viaRedsync) release(ctx context.Context) error {
	if _, err := v.mutex.UnlockContext(ctx); !errors.Is(err, ownTimeout) {
		return err
	}
	return nil
}

// By default redsync gives a server 400 ms, a twentieth of the lease. The worker itself sets no deadline.
var ownTimeout = context.DeadlineExceeded

// viaPackage is this project's package for Go. All contenders of a process share one client and its pool.
type viaPackage struct {
	locker *rlock.Locker
	key    string
	hold   *rlock.Hold
}

func openPackage(ctx context.Context, key string) (func() (handle, error), error) {
	locker, err := rlock.New(redis.NewClient(&redis.Options{Addr: address()}))
	return func() (handle, error) { return &viaPackage{locker: locker, key: key}, nil }, err
}

func (v *viaPackage) acquire(ctx context.Context) (err error) {
	v.hold, err = v.locker.Lock(ctx, v.key)
	return err
}

func (v *viaPackage) release(context.Context) error { return v.hold.Release() }

// native sends RLOCK's commands. Each has its own connection.
type native struct {
	client     *redis.Client
	key, owner string
}

func openNative(ctx context.Context, key string) (handle, error) {
	client := redis.NewClient(&redis.Options{
		Addr:     address(),
		PoolSize: 1,
		// A wait may be long. The default of 5 s would end it, and send the command again.
		ReadTimeout: -1,
	})
	return native{client, key, rand.Text()}, client.Ping(ctx).Err()
}

func (n native) acquire(ctx context.Context) error {
	return n.client.Do(ctx, "RLOCK.ACQUIRE", n.key, n.owner, "BLOCK", 0).Err()
}

func (n native) release(ctx context.Context) error {
	return n.client.Do(ctx, "RLOCK.RELEASE", n.key, n.owner).Err()
}
