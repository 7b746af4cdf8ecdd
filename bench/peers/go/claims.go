package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	claimers  = 16
	warmUp    = 50
	askFor    = 10 * time.Second
	lineBytes = 64 << 20
)

// round is what happens between two failovers.
type round struct {
	client redis.UniversalClient
	prefix string

	mu      sync.Mutex
	stopped bool
}

// say prints the line, unless the round has been stopped. It returns whether that is so.
func (r *round) say(format string, words ...any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped && format != "" {
		fmt.Printf(format, words...)
	}
	return r.stopped
}

func (r *round) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

// warmUp locks and unlocks, as a client that has run for a while has done.
func (r *round) warmUp(ctx context.Context) error {
	mutex := redsync.New(goredis.NewPool(r.client)).NewMutex(r.prefix + ":warm")
	for range warmUp {
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		if _, err := mutex.UnlockContext(ctx); err != nil {
			return err
		}
	}
	return nil
}

// claim locks one new key after the other. A lock that it did not get is not held.
func (r *round) claim(ctx context.Context, number int) {
	locks := redsync.New(goredis.NewPool(r.client))
	for i := 0; !r.say(""); i++ {
		key := fmt.Sprintf("%s:Redsync:%d:%d", r.prefix, number, i)
		mutex, sent := locks.NewMutex(key), time.Now().UnixMilli()
		if mutex.LockContext(ctx) == nil {
			told, until := time.Now().UnixMilli(), mutex.Until().UnixMilli()
			r.say("claim Redsync %s %s 0 %d %d %d\n", key, mutex.Value(), sent, told, until)
		}
	}
}

func connect(how, port string) redis.UniversalClient {
	address := "127.0.0.1:" + port
	switch how {
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "rlock", SentinelAddrs: []string{address}})
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	}
	return redis.NewClient(&redis.Options{Addr: address})
}

// ask asks for all of these locks.
func ask(ctx context.Context, port string, keys []string) {
	client := connect("single", port)
	defer client.Close()
	locks, left := redsync.New(goredis.NewPool(client)), make(chan string, len(keys))
	for _, key := range keys {
		left <- key
	}
	close(left)
	var asking sync.WaitGroup
	for range claimers {
		asking.Go(func() {
			for key := range left {
				fmt.Print(answer(ctx, locks, key))
			}
		})
	}
	asking.Wait()
}

// answer asks again if there was no reply.
func answer(ctx context.Context, locks *redsync.Redsync, key string) string {
	for ends := time.Now().Add(askFor); time.Now().Before(ends); {
		var taken *redsync.ErrTaken
		switch err := locks.NewMutex(key).TryLockContext(ctx); {
		case err == nil:
			return fmt.Sprintf("granted %s 0 %d\n", key, time.Now().UnixMilli())
		case errors.As(err, &taken):
			return fmt.Sprintf("refused %s\n", key)
		}
	}
	return fmt.Sprintf("unknown %s\n", key)
}

// silent is for what go-redis logs about servers that die.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// claims uses redsync's locks for tests/torture/failovers/rivals.rs, which says what each line asks for.
func claims(ctx context.Context) error {
	redis.SetLogger(silent{})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, lineBytes)
	var current *round
	for in.Scan() {
		words := strings.Fields(in.Text())
		switch words[0] {
		case "claim":
			if current != nil {
				current.client.Close()
			}
			current = &round{client: connect(words[1], words[2]), prefix: words[3]}
			if err := current.warmUp(ctx); err != nil {
				return err
			}
			fmt.Println("ready")
		case "go":
			for number := range claimers {
				go current.claim(ctx, number)
			}
		case "stop":
			current.stop()
			fmt.Println("done")
		case "ask":
			ask(ctx, words[1], words[2:])
			fmt.Println("done")
		}
	}
	return in.Err()
}
