// Locks in Go: exclusive, shared, permits, and a lock that is lost. The server is at 127.0.0.1:$PORT, or 6380.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"rlock.example/rlock"
)

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + cmp.Or(os.Getenv("PORT"), "6380")})
	locker, err := rlock.New(client)
	check(err)
	client.Del(ctx, "go:count")

	// Ten goroutines add to a counter that lacks an atomic increment.
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			check(locker.Do(ctx, "go:counter", func(ctx context.Context, hold *rlock.Hold) error {
				count, _ := client.Get(ctx, "go:count").Int()
				return client.Set(ctx, "go:count", count+1, 0).Err()
			}, rlock.Wait(10*time.Second)))
		})
	}
	workers.Wait()
	fmt.Println("counted:", client.Get(ctx, "go:count").Val())

	// Readers share the lock. A writer would have to wait, and this one does not want to.
	page := locker.RWMutex("go:page")
	page.RLock()
	fmt.Println("a reader shares:", page.TryRLock(), " a writer enters:", page.TryLock())
	page.RUnlock()
	page.RUnlock()

	// The context of a hold ends when the hold is lost, here because of an operator. The token guards the write.
	hold, err := locker.Lock(ctx, "go:stock", rlock.Lease(time.Second))
	check(err)
	client.Do(ctx, "RLOCK.FORCE", "go:stock")
	<-hold.Context().Done()
	alive, err := client.Do(ctx, "RLOCK.CHECK", "go:stock", hold.Token()).Bool()
	check(err)
	fmt.Println("told:", context.Cause(hold.Context()), " may write:", alive)
	fmt.Println("released:", errors.Is(hold.Release(), rlock.ErrLost))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
