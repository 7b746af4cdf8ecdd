package rlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
)

// placed is where the server is, and how a user's client finds it.
type placed struct {
	name   string
	client func() redis.UniversalClient
}

// Every way to give go-redis the address of a server, on real servers: with each, all features of this package work.
func TestEveryAddress(t *testing.T) {
	folder, ca := t.TempDir(), newAuthority(t)
	socket, tlsPort := filepath.Join(folder, "s"), fmt.Sprint(freePort(t))
	words := ca.server(tlsPort, "good", "127.0.0.1", time.Now().Add(time.Hour), "--unixsocket", socket, "--tls-auth-clients", "no")
	s := start(t, words...)
	s.client.Do(ctx, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
	sentinel := sentinel(t, s)
	cluster := startCluster(t)
	seeds := []string{cluster[0].addr(), cluster[1].addr()}
	of := func(change func(*redis.Options)) func() redis.UniversalClient {
		return func() redis.UniversalClient {
			options := &redis.Options{Addr: s.addr()}
			change(options)
			return redis.NewClient(options)
		}
	}
	url := func(text string, change ...func(*redis.Options)) func() redis.UniversalClient {
		return func() redis.UniversalClient {
			options, err := redis.ParseURL(text)
			if err != nil {
				t.Fatal(text, err)
			}
			for _, each := range change {
				each(options)
			}
			return redis.NewClient(options)
		}
	}
	behind := func(change func(*redis.FailoverOptions)) func() redis.UniversalClient {
		return func() redis.UniversalClient {
			options := &redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel.addr()}}
			change(options)
			return redis.NewFailoverClient(options)
		}
	}
	clustered := func(change func(*redis.ClusterOptions)) func() redis.UniversalClient {
		return func() redis.UniversalClient {
			options := &redis.ClusterOptions{Addrs: seeds}
			change(options)
			return redis.NewClusterClient(options)
		}
	}
	universal := func(options *redis.UniversalOptions) func() redis.UniversalClient {
		return func() redis.UniversalClient { return redis.NewUniversalClient(options) }
	}
	trusting := func(o *redis.Options) { o.TLSConfig = ca.trusted() }
	places := []placed{
		{"an address", of(func(o *redis.Options) {})},
		{"a name", of(func(o *redis.Options) { o.Addr = fmt.Sprint("localhost:", s.port) })},
		{"RESP2", of(func(o *redis.Options) { o.Protocol = 2 })},
		{"RESP3", of(func(o *redis.Options) { o.Protocol = 3 })},
		{"a pool of one", of(func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = 1, 1 })},
		{"another database", of(func(o *redis.Options) { o.DB = 5 })},
		{"a client name", of(func(o *redis.Options) { o.ClientName = "billing" })},
		{"a user", of(func(o *redis.Options) { o.Username, o.Password = "app", "secret" })},
		{"a dialer", of(func(o *redis.Options) {
			o.Addr = "nowhere:1"
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", s.addr()) }
		})},
		{"a credentials provider", of(func(o *redis.Options) {
			o.CredentialsProvider = func() (string, string) { return "app", "secret" }
		})},
		{"a credentials provider with a context", of(func(o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "app", "secret", nil }
		})},
		{"a streaming credentials provider", of(func(o *redis.Options) { o.StreamingCredentialsProvider = streaming{} })},
		{"a unix socket", of(func(o *redis.Options) { o.Network, o.Addr = "unix", socket })},
		{"a path", of(func(o *redis.Options) { o.Addr = socket })},
		{"a URL", url(fmt.Sprintf("redis://%s/3", s.addr()))},
		{"a URL with a user", url(fmt.Sprintf("redis://app:secret@%s/?protocol=2", s.addr()))},
		{"a URL of a unix socket", url("unix://" + socket + "?db=2")},
		{"TLS", of(func(o *redis.Options) { o.Addr = "127.0.0.1:" + tlsPort; trusting(o) })},
		{"a URL with TLS", url("rediss://app:secret@127.0.0.1:"+tlsPort, trusting)},
		{"Sentinel", behind(func(*redis.FailoverOptions) {})},
		{"Sentinel, another database, RESP2", behind(func(o *redis.FailoverOptions) { o.DB, o.Protocol = 4, 2 })},
		{"Sentinel with a user", behind(func(o *redis.FailoverOptions) { o.Username, o.Password, o.PoolSize = "app", "secret", 1 })},
		{"Sentinel, by a Cluster's client", func() redis.UniversalClient {
			return redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel.addr()}})
		}},
		{"a Cluster", clustered(func(*redis.ClusterOptions) {})},
		{"a Cluster, RESP2, pools of one", clustered(func(o *redis.ClusterOptions) { o.Protocol, o.PoolSize = 2, 1 })},
		{"a Cluster, read from replicas", clustered(func(o *redis.ClusterOptions) { o.ReadOnly, o.RouteByLatency = true, true })},
		{"universal: an address", universal(&redis.UniversalOptions{Addrs: []string{s.addr()}})},
		{"universal: Sentinel", universal(&redis.UniversalOptions{Addrs: []string{sentinel.addr()}, MasterName: "m"})},
		{"universal: a Cluster", universal(&redis.UniversalOptions{Addrs: seeds})},
	}
	for _, place := range places {
		t.Run(place.name, func(t *testing.T) { usable(t, place.client) })
	}
	t.Log(len(places), "ways")
	for what, client := range map[string]redis.UniversalClient{
		"a ring": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": s.addr()}}), "nothing": nil,
	} {
		if _, err := New(client); err == nil {
			t.Error(what, " is taken")
		}
	}
}

type streaming struct{}

func (streaming) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return auth.NewBasicCredentials("app", "secret"), func() error { return nil }, nil
}

// usable checks all features of this package.
func usable(t *testing.T, client func() redis.UniversalClient) {
	t.Helper()
	asks := client()
	t.Cleanup(func() { asks.Close() })
	one, two := newLocker(t, client()), newLocker(t, client())
	key := fmt.Sprint("key of ", t.Name())
	waits := func(l *Locker, choices ...Option) func() time.Duration {
		hold := must(t)(one.Lock(ctx, key, Wait(20*time.Second)))
		granted := make(chan time.Time, 1)
		go func() {
			next, err := l.Lock(ctx, key, append(choices, Wait(20*time.Second))...)
			granted <- time.Now()
			if err == nil {
				err = next.Release()
			}
			if err != nil {
				t.Error(err)
			}
		}()
		return func() time.Duration {
			until(t, "it waits", func() bool { return info(t, asks, key, "queue-length") == int64(1) || len(granted) == 1 })
			released := time.Now()
			release(t, hold)
			return (<-granted).Sub(released)
		}
	}
	hold := must(t)(one.Lock(ctx, key))
	if _, err := two.TryLock(ctx, key); !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
	if err := hold.Extend(ctx, time.Minute); err != nil {
		t.Error(err)
	}
	if alive, err := hold.Valid(ctx); !alive || err != nil {
		t.Error(alive, err)
	}
	release(t, hold)
	countTogether(t, asks, key, one, two)
	waits(two)()
	waits(two, Session())()
	waits(two, Acks(0))()
	both := must(t)(two.All([]One{Key("{" + key + "}a"), ReadKey("{" + key + "}b")}).Lock(ctx, Session()))
	release(t, both)
	election := one.Election(key+" leader", "")
	term := must(t)(election.Campaign(ctx))
	if leader, err := two.Election(key+" leader", "").Leader(ctx); err != nil || leader.Token != term.Token() {
		t.Error(leader, err)
	}
	observing, cancel := context.WithCancel(ctx)
	defer cancel()
	leaders := election.Observe(observing)
	if leader := <-leaders; leader.Owner != term.Owner() {
		t.Error(leader)
	}
	release(t, term)
	if leader := <-leaders; leader.Token != 0 {
		t.Error(leader)
	}
}

// Names of keys and of owners are bytes; owners' names are part of messages, too.
func TestEveryName(t *testing.T) {
	s := start(t)
	names := []string{"plain", "Zoë", "用户", `CORP\alice`, "\xff\xfe", "\xc3\x28", "a\nb\r\n", "a b", "nul\x00byte", "\x00", "*?[a-z]",
		"{tag}", "{", "", "'\"", "\x01\x7f", strings.Repeat("x", 512), strings.Repeat("\xff", 512)}
	l, other := s.locker(), s.locker()
	for _, key := range names {
		hold := must(t)(l.Lock(ctx, key))
		for _, other := range names {
			if other != key && s.mode(other) != "free" {
				t.Errorf("%q locks %q", key, other)
			}
		}
		if hold.Key() != key {
			t.Errorf("%q is %q", key, hold.Key())
		}
		release(t, hold)
	}
	for _, owner := range names {
		if owner == "" {
			continue // there is none
		}
		hold := must(t)(l.Lock(ctx, "order", Owner(owner)))
		if err := errorOf(l.TryLock(ctx, "order", Owner(owner+"'"))); len(owner) < 512 && !errors.Is(err, ErrNotAcquired) {
			t.Errorf("%q: %v", owner, err)
		}
		release(t, must(t)(l.Lock(ctx, "order", Owner(owner))))
		release(t, hold)
		hold = must(t)(l.Lock(ctx, "order"))
		waits := make(chan *Hold, 1)
		go func() { waits <- must(t)(other.Lock(ctx, "order", Owner(owner), Wait(20*time.Second))) }()
		until(t, "it waits", func() bool { return s.waiters("order") == 1 })
		seen := observer{l: other, key: "order", known: Leader{Token: hold.Token()}, block: 20_000}
		leader := make(chan Leader, 1)
		go func() {
			next, _, err := seen.next(ctx)
			if err != nil {
				t.Errorf("%q is not seen: %v", owner, err)
			}
			leader <- next
		}()
		until(t, "it is observed", func() bool { return info(t, s.client, "order", "observers") == int64(1) })
		release(t, hold)
		next := <-waits
		if seen := <-leader; seen.Owner != owner || seen.Token != next.Token() {
			t.Errorf("%q is seen as %q", owner, seen.Owner)
		}
		release(t, next)
	}
	t.Log(len(names), "names")
}
