package rlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Each of these failed with the go-redis file that this package replaces. The conformance script has the same for all
// clients.

func TestWaitsDoNotTakeThePoolOfTheHolder(t *testing.T) {
	s := start(t)
	client := redis.NewClient(&redis.Options{Addr: s.addr(), PoolSize: 8})
	l := newLocker(t, client)
	var users sync.WaitGroup
	for range 40 {
		users.Go(func() {
			hold, err := l.Lock(ctx, "pool", Wait(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(50 * time.Millisecond)
			if client.Set(ctx, "some", "thing", 0).Err() != nil {
				t.Error("the user's own pool is used up")
			}
			release(t, hold)
		})
	}
	users.Wait()
}

func TestAWaitAndAHoldOutliveAServerThatIsKilledAndComesBack(t *testing.T) {
	s := start(t, "--appendonly", "yes", "--appendfsync", "always")
	for _, choices := range ways {
		l := s.locker()
		s.client.Do(ctx, "RLOCK.ACQUIRE", "kept", "somebody", "LEASE", 60000)
		mine := must(t)(l.Lock(ctx, "mine", Lease(5*time.Second)))
		waits := make(chan *Hold)
		go func() { waits <- must(t)(l.Lock(ctx, "kept", append(choices, Wait(time.Minute))...)) }()
		until(t, "it waits", func() bool { return s.waiters("kept") == 1 })
		s.kill()
		time.Sleep(300 * time.Millisecond)
		s.again()
		until(t, "it waits again", func() bool { return s.waiters("kept") == 1 })
		s.client.Do(ctx, "RLOCK.RELEASE", "kept", "somebody")
		release(t, <-waits)
		if !mine.IsHeld() {
			t.Fatal(context.Cause(mine.Context()))
		}
		release(t, mine)
	}
}

func TestTheEndOfThePatienceIsKeptWithoutAServer(t *testing.T) {
	s := start(t)
	l := s.locker()
	s.kill()
	for owner, choices := range owners {
		for range 20 {
			begin := time.Now()
			_, err := l.Lock(ctx, "gone", append(choices, Wait(10*time.Millisecond))...)
			if took := time.Since(begin); !errors.Is(err, ErrUnavailable) || took < 10*time.Millisecond {
				t.Error(owner, err, took)
			}
		}
	}
	begin := time.Now()
	_, err := l.Lock(ctx, "gone", Wait(500*time.Millisecond))
	if took := time.Since(begin); !errors.Is(err, ErrUnavailable) || took < 500*time.Millisecond || took > 5*time.Second {
		t.Fatal(err, took)
	}
	cancelling, cancel := context.WithCancel(ctx)
	time.AfterFunc(200*time.Millisecond, cancel)
	begin = time.Now()
	_, err = l.Lock(cancelling, "gone")
	isNamed := err != nil && strings.Contains(err.Error(), "context canceled; last error: dial tcp")
	if !errors.Is(err, context.Canceled) || !isNamed || time.Since(begin) > 5*time.Second {
		t.Fatal(err, time.Since(begin))
	}
	if _, err = l.Election("leader", "").Leader(ctx); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	s.again()
	release(t, must(t)(l.Lock(ctx, "gone")))
}

func TestAWaitWithoutAServerWarnsOnce(t *testing.T) {
	s := start(t)
	used, unused, other := s.locker(), s.locker(), s.locker()
	release(t, must(t)(used.Lock(ctx, "order")))
	s.kill()
	said := warnings(t)
	var waits sync.WaitGroup
	for what, wait := range map[string]func() (*Hold, error){
		"plain":  func() (*Hold, error) { return used.Lock(ctx, "plain", Wait(6*time.Second)) },
		"named":  func() (*Hold, error) { return unused.Lock(ctx, "named", Wait(6*time.Second), Owner("ann")) },
		"leader": func() (*Hold, error) { return other.Election("leader", "").Campaign(ctx, Wait(6*time.Second)) },
	} {
		waits.Go(func() {
			begin := time.Now()
			_, err := wait()
			if took := time.Since(begin); !errors.Is(err, ErrUnavailable) || took < 6*time.Second || took > 7*time.Second {
				t.Error(what, ": ", err, took)
			}
		})
	}
	waits.Wait()
	for _, what := range []string{"plain", "named", "leader"} {
		if count := strings.Count(said.String(), what+": still waiting; last error: "); count != 1 {
			t.Error(what, ": ", count, " warnings")
		}
	}
}

func TestWaitsThatFindNoServerTogetherWarnOnce(t *testing.T) {
	s := start(t)
	l := s.locker()
	release(t, must(t)(l.Lock(ctx, "order")))
	s.kill()
	said := warnings(t)
	var waits sync.WaitGroup
	for range 200 {
		waits.Go(func() { l.Lock(ctx, "crowd", Wait(8*time.Second)) })
	}
	waits.Wait()
	if count := strings.Count(said.String(), "still waiting"); count == 0 || count > 2 {
		t.Error(count, " warnings:\n", said.String())
	}
}

// Twenty goroutines and three kills: a hold that is certain is the only one, and all goroutines make progress.
func TestUnderLoadWhileTheServerIsKilledAndStopped(t *testing.T) {
	s := start(t, "--appendonly", "yes", "--appendfsync", "always")
	l := s.locker()
	var inside, rounds atomic.Int64
	var newest atomic.Int64
	ending := make(chan struct{})
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for {
				select {
				case <-ending:
					return
				default:
				}
				hold, err := l.Lock(ctx, "load", Wait(30*time.Second), Lease(3*time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 && hold.IsHeld() {
					t.Error("two at once")
				}
				if before := newest.Swap(hold.Token()); before >= hold.Token() {
					t.Error("a token that is not greater: ", before, hold.Token())
				}
				rounds.Add(1)
				inside.Add(-1)
				if err := hold.Release(); err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		time.Sleep(time.Second)
		s.kill()
		time.Sleep(200 * time.Millisecond)
		s.again()
		before := rounds.Load()
		until(t, "they get on", func() bool { return rounds.Load() > before+20 })
		s.signal(syscall.SIGSTOP)
		time.Sleep(500 * time.Millisecond)
		s.signal(syscall.SIGCONT)
	}
	close(ending)
	workers.Wait()
	until(t, "nothing is left", func() bool { return s.mode("load") == "free" && s.waiters("load") == 0 })
	t.Log(rounds.Load(), "rounds")
}

// Two lockers of one server: what one of them releases is not what the other one holds.
func countTogether(t *testing.T, client redis.UniversalClient, key string, one, two *Locker) {
	t.Helper()
	outer := must(t)(one.Lock(ctx, key, Owner("ann")))
	inner := must(t)(two.Lock(ctx, key, Owner("ann")))
	if outer.Token() != inner.Token() {
		t.Fatal("another hold")
	}
	release(t, inner)
	if depth := client.Do(ctx, "RLOCK.HOLDS", key, "ann").Val(); depth != int64(1) || !outer.IsHeld() {
		t.Fatal("the outer hold: ", depth)
	}
	release(t, outer)
	if mode := info(t, client, key, "mode"); mode != "free" {
		t.Fatal(mode)
	}
}

func TestTwoNamesOfOneServerAreOneServer(t *testing.T) {
	s := start(t)
	other := newLocker(t, redis.NewClient(&redis.Options{Addr: fmt.Sprint("localhost:", s.port)}))
	countTogether(t, s.client, "order", s.locker(), other)
}

func TestTwoLockersBehindSentinelsAreOfOneServer(t *testing.T) {
	s := start(t)
	sentinel := sentinel(t, s)
	behind := func() *Locker {
		return newLocker(t, redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel.addr()}}))
	}
	one, two := behind(), behind()
	count := func() int {
		known.Lock()
		defer known.Unlock()
		return len(known.services)
	}
	before := count()
	countTogether(t, s.client, "order", one, two)
	if more := count() - before; more != 1 { // an address would outlive its locker, and then be another one's
		t.Error(more, " names for one server")
	}
}

func startCluster(t *testing.T) []*server {
	t.Helper()
	words := []string{"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"}
	servers := []*server{start(t, words...), start(t, words...), start(t, words...)}
	for i, s := range servers {
		if err := s.client.ClusterAddSlotsRange(ctx, i*5462, min(16383, i*5462+5461)).Err(); err != nil {
			t.Fatal(err)
		}
		s.client.ClusterMeet(ctx, "127.0.0.1", fmt.Sprint(servers[0].port))
	}
	for _, s := range servers {
		until(t, "the cluster is whole", func() bool {
			known := s.client.ClusterInfo(ctx).Val()
			return strings.Contains(known, "cluster_state:ok") &&
				strings.Contains(known, "cluster_slots_ok:16384")
		})
	}
	return servers
}

func TestAWaitEndsInTimeThoughNobodyAnswersInACluster(t *testing.T) {
	servers := startCluster(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].addr(), servers[1].addr()}})
	l := newLocker(t, cluster)
	for _, s := range servers {
		s.signal(syscall.SIGSTOP)
	}
	for owner, choices := range owners {
		begin := time.Now()
		_, err := l.Lock(ctx, "order", append(choices, Wait(300*time.Millisecond))...)
		if took := time.Since(begin); !errors.Is(err, ErrUnavailable) || took > time.Second {
			t.Error(owner, err, took)
		}
	}
}

func TestAServerThatARedirectionNamesIsDialledThoughTheOtherOneIsGone(t *testing.T) {
	servers := startCluster(t)
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: servers[0].addr()}))
	key := "order"
	for slot(key)/5462 != 1 {
		key += "+"
	}
	release(t, must(t)(l.Lock(ctx, key)))
	gone, named := l.servers.nodes[""], l.servers.nodes[servers[1].addr()]
	gone.dials.note(errors.New("it was not reached"))
	gone.dials.restsUntil = now() + 3_600_000
	if _, err := named.line(ctx); err != nil {
		t.Error(err)
	}
}

func TestOfACluster(t *testing.T) {
	servers := startCluster(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].addr()}})
	l := newLocker(t, cluster)
	seeds := []string{servers[2].addr(), servers[1].addr()}
	other := newLocker(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: seeds}))
	for i := range 6 {
		countTogether(t, cluster, fmt.Sprint("key-", i), l, other)
	}
	var users sync.WaitGroup
	for i := range 24 {
		users.Go(func() {
			for range 4 {
				hold, err := l.Lock(ctx, fmt.Sprint("key-", i%6), Wait(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				release(t, hold)
			}
		})
	}
	users.Wait()
}

// When a process that holds with a session ends, so does the hold. This test is that process, too.
func TestASessionEndsWithItsProcess(t *testing.T) {
	if addr := os.Getenv("RLOCK_HOLD_AT"); addr != "" {
		must(t)(newLocker(t, redis.NewClient(&redis.Options{Addr: addr})).Lock(ctx, "process", Session()))
		fmt.Println("held")
		select {}
	}
	s := start(t)
	holder := exec.Command(os.Args[0], "-test.run=^TestASessionEndsWithItsProcess$")
	holder.Env = append(os.Environ(), "RLOCK_HOLD_AT="+s.addr())
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "it holds", func() bool { return s.mode("process") == "write" })
	begin := time.Now()
	holder.Process.Kill()
	holder.Wait()
	release(t, must(t)(s.locker().Lock(ctx, "process", Wait(10*time.Second))))
	if took := time.Since(begin); took > 5*time.Second {
		t.Fatal("by its lease only: ", took)
	}
}

// For -race: another goroutine undoes what the caller left.
func TestAnErrorIsOfItsCallAndNotOfWhatIsUndone(t *testing.T) {
	s := start(t)
	l := s.locker()
	release(t, must(t)(l.Lock(ctx, "order")))
	s.signal(syscall.SIGSTOP)
	if _, err := l.Lock(ctx, "order", Owner("ann"), Lease(500*time.Millisecond), Wait(100*time.Millisecond)); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	s.kill()
	until(t, "nothing is left to undo", func() bool {
		seats.Lock()
		defer seats.Unlock()
		for id := range seats.of {
			if id.owner == "ann" {
				return false
			}
		}
		return true
	})
}
