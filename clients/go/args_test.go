package rlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Each argument of each function, out of its range: the error names the argument, the range and the unit; and nothing
// is sent.
func TestArgumentsAreChecked(t *testing.T) {
	s := start(t)
	l := s.locker()
	lock := func(choices ...Option) error {
		hold, err := l.Lock(ctx, "order", choices...)
		if hold != nil {
			err = hold.Release()
		}
		return err
	}
	hold := must(t)(l.Lock(ctx, "held"))
	settings := func(settings ...Setting) error {
		_, err := New(redis.NewClient(&redis.Options{Addr: s.addr()}), settings...)
		return err
	}
	all := func(ones ...One) error {
		_, err := l.All(ones).Lock(ctx)
		return err
	}
	work := func(context.Context, *Hold) error { return nil }
	long := strings.Repeat("x", 513)
	var none context.Context
	for what, row := range map[string]struct {
		err error
		say string
	}{
		"wait -1":          {lock(Wait(-1)), "a wait must be at least 0, which does not wait, not -1ns"},
		"wait least":       {lock(Wait(math.MinInt64)), "a wait must be at least 0"},
		"lease 0":          {lock(Lease(0)), "a lease must be from 1ms to 168h0m0s, not 0s"},
		"lease 1ns":        {lock(Lease(1)), "a lease must be from 1ms to 168h0m0s, not 1ns"},
		"lease negative":   {lock(Lease(-time.Second)), "a lease must be from 1ms to 168h0m0s, not -1s"},
		"lease too long":   {lock(Lease(math.MaxInt64)), "a lease must be from 1ms to 168h0m0s"},
		"session lease":    {lock(Session(), Lease(999*time.Millisecond)), "the lease of a session must be from 1s to 168h0m0s, not 999ms"},
		"limit 0":          {lock(Limit(0)), "Limit must be from 1 to 1000000 permits, not 0"},
		"limit -1":         {lock(Limit(-1)), "Limit must be from 1 to 1000000 permits, not -1"},
		"limit too many":   {lock(Limit(1_000_001)), "Limit must be from 1 to 1000000 permits, not 1000001"},
		"max queue -1":     {lock(MaxQueue(-1)), "MaxQueue must be from 0 to 1000000 waiters, not -1"},
		"max queue":        {lock(MaxQueue(math.MaxInt)), "MaxQueue must be from 0 to 1000000 waiters"},
		"acks -1":          {lock(Acks(-1)), "Acks must be from 0 to 16 replicas, not -1"},
		"acks 17":          {lock(Acks(17)), "Acks must be from 0 to 16 replicas, not 17"},
		"no owner":         {lock(Owner("")), "an owner must be 1 to 512 bytes long, not 0"},
		"owner too long":   {lock(Owner(long)), "an owner must be 1 to 512 bytes long, not 513"},
		"owner of runes":   {lock(Owner(strings.Repeat("ë", 257))), "an owner must be 1 to 512 bytes long, not 514"},
		"upgrade of none":  {lock(Upgrade()), "Upgrade needs Owner"},
		"upgrade to read":  {lock(Upgrade(), Owner("ann"), Read()), "Upgrade requests the write lock"},
		"two options":      {lock(Acks(-1), Wait(-1)), "Acks must be from 0 to 16 replicas, not -1"},
		"a later option":   {lock(Wait(-1), Wait(0)), "a wait must be at least 0"},
		"nil option":       {lock(nil), "an option is nil"},
		"nil context":      {errorOf(l.Lock(none, "order")), "the context is nil"},
		"try, nil context": {errorOf(l.TryLock(none, "order")), "the context is nil"},
		"all, nil context": {errorOf(l.All([]One{Key("a")}).Lock(none)), "the context is nil"},
		"all, options":     {errorOf(l.All([]One{Key("a")}, Lease(0)).Lock(ctx)), "a lease must be from 1ms to 168h0m0s, not 0s"},
		"all, more":        {errorOf(l.All([]One{Key("a")}).Lock(ctx, MaxQueue(-1))), "MaxQueue must be from 0 to 1000000 waiters, not -1"},
		"do, nil context":  {l.Do(none, "order", work), "the context is nil"},
		"do, nothing":      {l.Do(ctx, "order", nil), "the function to call is nil"},
		"do, options":      {l.Do(ctx, "order", work, Lease(0)), "a lease must be from 1ms to 168h0m0s, not 0s"},
		"extend 0":         {hold.Extend(ctx, 0), "a lease must be from 1ms to 168h0m0s, not 0s"},
		"extend negative":  {hold.Extend(ctx, -time.Second), "a lease must be from 1ms to 168h0m0s, not -1s"},
		"extend too long":  {hold.Extend(ctx, 8*24*time.Hour), "a lease must be from 1ms to 168h0m0s, not 192h0m0s"},
		"extend, nil":      {hold.Extend(none, time.Second), "the context is nil"},
		"valid, nil":       {second(hold.Valid(none)), "the context is nil"},
		"release, nil":     {hold.ReleaseContext(none), "the context is nil"},
		"leader, nil":      {second(l.Election("leader", "").Leader(none)), "the context is nil"},
		"campaign, nil":    {errorOf(l.Election("leader", "").Campaign(none)), "the context is nil"},
		"campaign, lease":  {errorOf(l.Election("leader", "").Campaign(ctx, Lease(time.Millisecond))), "the lease of a session must be from 1s"},
		"campaign, name":   {errorOf(l.Election("leader", long).Campaign(ctx)), "the name of an election must be at most "},
		"nil setting":      {settings(nil), "a setting is nil"},
		"nil client":       {second(New(nil)), "the client is nil"},
		"nil redis.Client": {second(New((*redis.Client)(nil))), "the redis.Client is nil"},
		"nil Cluster":      {second(New((*redis.ClusterClient)(nil))), "the redis.ClusterClient is nil"},
	} {
		if !errors.Is(row.err, ErrArgument) || !strings.HasPrefix(row.err.Error(), "rlock: invalid argument: "+row.say) {
			t.Errorf("%s: %v", what, row.err)
		}
	}
	for what, err := range map[string]error{
		"none": all(), "empty": all(One{}), "limit 0": all(LimitKey("a", 0)), "limit": all(LimitKey("a", 1_000_001)),
	} {
		if !errors.Is(err, ErrKeys) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if keys := s.client.Keys(ctx, "*").Val(); len(keys) != 1 || !hold.IsHeld() {
		t.Error(keys)
	}
	release(t, hold)
	// At the ends of the ranges.
	for what, choices := range map[string][]Option{
		"shortest": {Lease(time.Millisecond), NoRenewal()}, "longest": {Lease(longestLease)}, "limit": {Limit(mostPermits)},
		"session": {Session(), Lease(sessionLease)}, "owner": {Owner(long[:512])}, "queue": {MaxQueue(mostWaiters)}, "none": {Acks(0)},
	} {
		if err := lock(choices...); err != nil && !(what == "shortest" && errors.Is(err, ErrLost)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	defer func() {
		if problem, _ := recover().(error); !errors.Is(problem, ErrArgument) {
			t.Error(problem)
		}
	}()
	l.Election("leader", "").Observe(none)
}

func errorOf(_ *Hold, err error) error { return err }

func second[T any](_ T, err error) error { return err }
