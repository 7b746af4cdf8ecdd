package rlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock"
)

var (
	ctx    = context.Background()
	client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:6380"})
	locker *rlock.Locker
	db     *sql.DB
)

func work(ctx context.Context, token int64) error { return ctx.Err() }

// One Locker is enough for the whole program.
func Example() {
	locker, err := rlock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = locker.Do(ctx, "order:42", func(ctx context.Context, hold *rlock.Hold) error {
		return work(ctx, hold.Token()) // this ctx ends when the hold is lost
	})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleLocker_Lock() {
	once := func() (err error) {
		hold, err := locker.Lock(ctx, "order:42", rlock.Wait(10*time.Second))
		if errors.Is(err, rlock.ErrNotAcquired) {
			return nil // somebody else had it for ten seconds
		} else if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, hold.Release()) }()
		return work(hold.Context(), hold.Token())
	}
	fmt.Println(once())
}

func ExampleLocker_TryLock() {
	hold, err := locker.TryLock(ctx, "nightly", rlock.Lease(time.Minute), rlock.NoRenewal())
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		fmt.Println("already done within this minute")
	case err == nil:
		fmt.Println("ours until", hold.Deadline()) // never released: at most once a minute
	}
}

// With a session, the next waiter gets the lock as soon as this process dies.
func ExampleSession() {
	hold, err := locker.Lock(ctx, "order:42", rlock.Session())
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release()
}

// At most ten workers at once; if a hundred already wait, the call is refused.
func ExampleLimit() {
	permit, err := locker.Lock(ctx, "api", rlock.Limit(10), rlock.MaxQueue(100))
	if err != nil {
		log.Fatal(err)
	}
	defer permit.Release()
}

// The database refuses writes of an old holder.
func ExampleHold_Token() {
	err := locker.Do(ctx, "account:a", func(ctx context.Context, hold *rlock.Hold) error {
		write := "UPDATE account SET balance = $1, token = $2 WHERE id = 'a' AND token < $2"
		done, err := db.ExecContext(ctx, write, 70, hold.Token())
		if err != nil {
			return err
		}
		if count, err := done.RowsAffected(); err != nil || count == 0 {
			return errors.Join(err, errors.New("a newer holder has written"))
		}
		return nil
	})
	fmt.Println(err)
}

// Two accounts, in any order: nobody can deadlock.
func ExampleLocker_All() {
	transfer := locker.All([]rlock.One{rlock.Key("account:7"), rlock.Key("account:3"), rlock.ReadKey("rates")})
	hold, err := transfer.Lock(ctx, rlock.Wait(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release()
}

func ExampleLocker_Any() {
	printers := locker.Any("printers", []string{"printer:1", "printer:2"})
	hold, err := printers.Lock(ctx, rlock.Wait(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release() // releases the permit as well
	fmt.Println("ours:", hold.Key())
}

func ExampleLocker_Once() {
	ran, err := locker.Once(ctx, "nightly", time.Hour, func(ctx context.Context, hold *rlock.Hold) error {
		return work(ctx, hold.Token()) // nobody else runs this in this hour
	}, rlock.IfItFails(rlock.Again))
	fmt.Println(ran, err)
}

func ExampleLocker_Check() {
	if err := locker.Check(ctx, "orders:check"); err != nil {
		log.Fatal(err) // before the program does anything else
	}
}

func ExampleLocker_RWMutex() {
	page := locker.RWMutex("page") // as sync.RWMutex, for all processes
	page.RLock()
	defer page.RUnlock()
}

func ExampleLocker_Election() {
	election := locker.Election("leader", "10.0.0.1:8443")
	for {
		hold, err := election.Campaign(ctx)
		if err != nil {
			log.Fatal(err)
		}
		work(hold.Context(), hold.Token()) // leads until this context ends
		if err := hold.Release(); err != nil && !errors.Is(err, rlock.ErrLost) {
			log.Fatal(err)
		}
	}
}

func ExampleElection_Observe() {
	for leader := range locker.Election("leader", "").Observe(ctx) {
		fmt.Println(leader.Name(), leader.Token) // a token of 0: nobody leads
	}
}
