package rlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// fault is an error that no retry ends: the client does not lead to a primary with the module. Its text has the
// address.
type fault struct {
	where, what string
	err         error
}

func (f *fault) Error() string { return fmt.Sprintf("rlock: %s %s: %v", f.where, f.what, f.err) }
func (f *fault) Unwrap() error { return f.err }

func isFault(err error) bool {
	_, is := errors.AsType[*fault](err)
	return is
}

// faultOf is the fault that err reveals about the server at where, or err itself.
func faultOf(where string, err error) error {
	if err == nil || isFault(err) {
		return err
	}
	var (
		unverified *tls.CertificateVerificationError
		authority  x509.UnknownAuthorityError
		hostname   x509.HostnameError
		invalid    x509.CertificateInvalidError
		alert      tls.AlertError
		record     tls.RecordHeaderError
	)
	text := err.Error()
	if _, unknown, is := strings.Cut(text, "all sentinels specified in configuration are unreachable: "); is {
		if strings.ReplaceAll(strings.ReplaceAll(unknown, "redis: nil", ""), "\n", "") == "" {
			return &fault{"no Sentinel", "knows a primary of that name", err}
		}
	}
	switch {
	case errors.As(err, &unverified), errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid):
		return &fault{where, "is not trusted by TLS", err}
	case errors.As(err, &record):
		return &fault{where, "does not speak TLS", err}
	// An alert from the other end is a net.OpError that has only a text.
	case errors.As(err, &alert), strings.Contains(text, "remote error: tls: "):
		return &fault{where, "refuses the TLS connection", err}
	case code(err) == "" && (strings.Contains(text, "redis: can't parse ") || strings.Contains(text, "redis: invalid reply: ")):
		return &fault{where, "is no Redis or Valkey server", err}
	}
	return err
}

// known is err as an error from n: a fault, if it is one.
func (n *node) known(err error) error {
	if n.options.Addr == failover {
		return faultOf("the primary that Sentinel names", err)
	}
	return faultOf(n.options.Addr, err)
}

// settled is the fault that n is a replica, if it was never a primary for this Locker, and its link to its primary is up:
// then no failover is in progress that could make it a primary. With Sentinel, and in a Cluster, the client searches for
// the primary again.
func (n *node) settled(ctx context.Context, refusal error) error {
	if code(refusal) != "READONLY" || n.servers.cluster != nil || n.options.Addr == failover || n.wasPrimary.Load() {
		return refusal
	}
	about, err := n.client.Load().Info(ctx, "replication").Result() // a redis.Conn answers nothing after READONLY
	if err != nil {
		return refusal
	}
	fields := map[string]string{}
	for line := range strings.Lines(about) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = value
	}
	if fields["role"] != "slave" || fields["master_link_status"] != "up" {
		return refusal
	}
	what := fmt.Sprintf("is a replica of %s:%s, and only a primary locks", fields["master_host"], fields["master_port"])
	return &fault{n.options.Addr, what, refusal}
}

// changes says whether only a primary executes the command.
func changes(words []any) bool {
	switch words[0] {
	case "RLOCK.ACQUIRE", "RLOCK.MACQUIRE", "RLOCK.RENEW", "RLOCK.MRENEW", "RLOCK.RELEASE", "RLOCK.MRELEASE":
		return true
	}
	return false
}

// judged is the reply of n to these words: a refusal or a failure that no retry ends is a fault.
func (n *node) judged(ctx context.Context, words []any, reply *redis.Cmd) *redis.Cmd {
	err := reply.Err()
	switch {
	case err == nil, err == redis.Nil:
		if changes(words) && !n.wasPrimary.Load() {
			n.wasPrimary.Store(true)
		}
		return reply
	case isFault(err):
		return reply
	}
	if better := n.settled(ctx, n.known(err)); isFault(better) {
		return redis.NewCmdResult(nil, better)
	}
	return reply
}
