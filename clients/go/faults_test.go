package rlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// answering listens at a port without being a server: it sends one fixed answer.
func answering(t *testing.T, with string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := conn.Read(make([]byte, 4096)); err == nil {
					conn.Write([]byte(with))
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// A permanent error is returned at once, with its cause, for every kind of request.
func TestAPermanentErrorEndsAtOnce(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	hour := time.Now().Add(time.Hour)
	ports := map[string]string{}
	secure := func(name, host string, ends time.Time, auth string) {
		ports[name] = fmt.Sprint("127.0.0.1:", freePort(t))
		_, port, _ := net.SplitHostPort(ports[name])
		start(t, ca.server(port, name, host, ends, "--tls-auth-clients", auth)...)
	}
	secure("good", "127.0.0.1", hour, "no")
	secure("elsewhere", "elsewhere.example", hour, "no")
	secure("expired", "127.0.0.1", time.Now().Add(-time.Hour), "no")
	secure("strict", "127.0.0.1", hour, "yes")
	s, closed := start(t), start(t)
	closed.client.ConfigSet(ctx, "requirepass", "secret")

	bare := bare(t)
	replica := start(t, "--replicaof", "127.0.0.1 "+fmt.Sprint(s.port))
	until(t, "it follows", func() bool {
		return strings.Contains(replica.client.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	sentinel := sentinel(t, s)
	s.client.Do(ctx, "ACL", "SETUSER", "app", "on", ">secret", "~app:*", "&*", "+@all")
	s.client.Do(ctx, "ACL", "SETUSER", "mute", "on", ">secret", "~*", "&*", "-@all", "+@connection", "+info")
	s.client.Do(ctx, "ACL", "SETUSER", "gone", "off", ">secret", "~*", "&*", "+@all")

	of := func(options redis.Options) redis.UniversalClient {
		if options.Addr == "" {
			options.Addr = s.addr()
		}
		return redis.NewClient(&options)
	}
	trusting := func(addr string) redis.UniversalClient { return of(redis.Options{Addr: addr, TLSConfig: ca.trusted()}) }
	rows := []struct {
		what   string
		client redis.UniversalClient
		says   string
		is     error
	}{
		{"a wrong password", of(redis.Options{Username: "app", Password: "wrong"}), "WRONGPASS", nil},
		{"an unknown user", of(redis.Options{Username: "nobody", Password: "secret"}), "WRONGPASS", nil},
		{"a user that is off", of(redis.Options{Username: "gone", Password: "secret"}), "WRONGPASS", nil},
		{"no password", of(redis.Options{Addr: closed.addr()}), "NOAUTH", nil},
		{"a password by a provider", of(redis.Options{CredentialsProvider: func() (string, string) { return "app", "wrong" }}), "WRONGPASS", nil},
		{"no permission for the key", of(redis.Options{Username: "app", Password: "secret"}), "NOPERM", ErrNoPerm},
		{"no permission for the command", of(redis.Options{Username: "mute", Password: "secret"}), "NOPERM", ErrNoPerm},
		{"a database that is not there", of(redis.Options{DB: 99}), "DB index is out of range", nil},
		{"no module", of(redis.Options{Addr: bare.addr()}), "the server has not loaded the RLOCK module", nil},
		{"a Sentinel as a server", of(redis.Options{Addr: sentinel.addr()}), "ERR", nil},
		{"a replica", of(redis.Options{Addr: replica.addr()}), fmt.Sprintf("%s is a replica of %s, and only a primary locks", replica.addr(), s.addr()), nil},
		{"an authority that is not trusted", of(redis.Options{Addr: ports["good"], TLSConfig: foreign.trusted()}), "is not trusted by TLS", nil},
		{"another host's certificate", trusting(ports["elsewhere"]), "is not trusted by TLS", nil},
		{"a certificate that has ended", trusting(ports["expired"]), "is not trusted by TLS", nil},
		// (With TLS 1.3, the client may see the connection end before it reads the alert, and then asks again.)
		{"no certificate of the client", of(redis.Options{Addr: ports["strict"], TLSConfig: &tls.Config{RootCAs: ca.pool, MaxVersion: tls.VersionTLS12}}), "refuses the TLS connection", nil},
		// (A server without TLS takes the handshake for a command and waits for its end. This one answers.)
		{"TLS where there is none", trusting(answering(t, "-ERR unknown command\r\n")), "does not speak TLS", nil},
		{"an HTTP server", of(redis.Options{Addr: answering(t, "HTTP/1.1 400 Bad Request\r\n\r\n")}), "is no Redis or Valkey server", nil},
		{"an SSH server", of(redis.Options{Addr: answering(t, "SSH-2.0-OpenSSH_9.2\r\n")}), "is no Redis or Valkey server", nil},
		{"a name that Sentinel does not know", redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "other", SentinelAddrs: []string{sentinel.addr()}}), "no Sentinel knows a primary of that name", nil},
		{"a Cluster of what is none", redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.addr()}}), "cluster support disabled", nil},
		{"a Cluster, a wrong password", redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.addr()}, Username: "app", Password: "wrong"}), "WRONGPASS", nil},
		{"a Cluster, TLS", redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{ports["good"]}, TLSConfig: foreign.trusted()}), "is not trusted by TLS", nil},
	}
	calls := 0
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			for what, call := range map[string]func(*Locker) error{
				"a lock":    func(l *Locker) error { return errorOf(l.Lock(ctx, "order", Wait(3*time.Second))) },
				"without":   func(l *Locker) error { return errorOf(l.TryLock(ctx, "order")) },
				"named":     func(l *Locker) error { return errorOf(l.Lock(ctx, "order", Owner("ann"), Wait(3*time.Second))) },
				"a session": func(l *Locker) error { return errorOf(l.Lock(ctx, "order", Session(), Wait(3*time.Second))) },
				"acked":     func(l *Locker) error { return errorOf(l.Lock(ctx, "order", Acks(1), Wait(3*time.Second))) },
				"several":   func(l *Locker) error { return errorOf(l.All([]One{Key("{a}"), Key("{a}b")}).Lock(ctx)) },
				"a term": func(l *Locker) error {
					ending, cancel := context.WithTimeout(ctx, 3*time.Second)
					defer cancel()
					return errorOf(l.Election("order", "").Campaign(ending))
				},
			} {
				l, err := New(row.client)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err = call(l)
				took := time.Since(begin)
				if err == nil || !strings.Contains(err.Error(), row.says) || errors.Is(err, ErrUnavailable) || (row.is != nil && !errors.Is(err, row.is)) {
					t.Errorf("%s: %v", what, err)
				}
				if took > 2*time.Second {
					t.Errorf("%s took %v", what, took)
				}
				l.Close()
				calls++
			}
			row.client.Close()
		})
	}
	t.Log(len(rows), "errors,", calls, "calls")
	// The cause is the library's own error, for errors.As.
	_, err := newLocker(t, of(redis.Options{Addr: ports["good"], TLSConfig: foreign.trusted()})).Lock(ctx, "order")
	var authority x509.UnknownAuthorityError
	var unverified *tls.CertificateVerificationError
	if !errors.As(err, &authority) && !errors.As(err, &unverified) {
		t.Error(err)
	}
}

// A primary that became a replica may become the primary again, or be replaced; so may a replica that has lost its
// primary.
func TestAReplicaMayBecomeThePrimary(t *testing.T) {
	s := start(t)
	other := start(t)
	used, unused := s.locker(), s.locker()
	release(t, must(t)(used.Lock(ctx, "order")))
	for what, l := range map[string]*Locker{"one that was the primary": used, "one whose primary is not there": unused} {
		port := fmt.Sprint(other.port)
		if l == unused {
			port = fmt.Sprint(freePort(t))
		}
		s.client.Do(ctx, "REPLICAOF", "127.0.0.1", port)
		until(t, "it is a replica", func() bool {
			about := s.client.Info(ctx, "replication").Val()
			return strings.Contains(about, "role:slave") && (l == unused || strings.Contains(about, "master_link_status:up"))
		})
		waits := make(chan error, 1)
		go func() {
			hold, err := l.Lock(ctx, "order", Wait(30*time.Second))
			if err == nil {
				err = hold.Release()
			}
			waits <- err
		}()
		refused := func() (count int) {
			_, after, _ := strings.Cut(s.client.Info(ctx, "errorstats").Val(), "errorstat_READONLY:count=")
			fmt.Sscan(after, &count)
			return count
		}
		before := refused()
		until(t, "it asks again", func() bool { return refused() > before+2 || len(waits) == 1 })
		s.client.Do(ctx, "REPLICAOF", "NO", "ONE")
		if err := <-waits; err != nil {
			t.Error(what, ": ", err)
		}
	}
}
