package rlock

import (
	"context"
	"errors"
	"testing"
	"time"
)

func nothing(context.Context, *Hold) error { return nil }

func TestOneOfAllRunsInEachInterval(t *testing.T) {
	s := start(t)
	l, other := s.locker(), s.locker()
	begin := time.Now()
	ran, err := l.Once(ctx, "k", time.Second, func(ctx context.Context, hold *Hold) error {
		if !hold.IsHeld() || ctx.Err() != nil {
			t.Error("it is not held")
		}
		return nil
	})
	if again, err2 := other.Once(ctx, "k", time.Second, nothing); !ran || err != nil || again || err2 != nil {
		t.Fatal(ran, err, again, err2)
	}
	until(t, "the interval is over", func() bool { return s.mode("k") == "free" })
	if took := time.Since(begin); took < time.Second {
		t.Fatal(took)
	}
	for range 2 {
		if ran, err := other.Once(ctx, "k", time.Second, nothing, Wait(10*time.Second)); !ran || err != nil {
			t.Fatal(ran, err)
		}
	}
}

func TestARunThatFailsKeepsItsIntervalOrNot(t *testing.T) {
	s := start(t)
	l, broken := s.locker(), errors.New("of the work")
	fails := map[string]func(context.Context, *Hold) error{
		"error": func(context.Context, *Hold) error { return broken },
		"panic": func(context.Context, *Hold) error { panic(broken) },
	}
	for name, work := range fails {
		for choice, mode := range map[Choice]string{Keep: "read", Again: "free"} {
			func() {
				defer func() { _ = recover() }()
				if ran, err := l.Once(ctx, name+string(choice), time.Hour, work, IfItFails(choice)); !ran || !errors.Is(err, broken) {
					t.Error(name, choice, ran, err)
				}
			}()
			if found := s.mode(name + string(choice)); found != mode {
				t.Error(name, choice, found)
			}
		}
	}
}

func TestTheIntervalIsAsLongAsItIs(t *testing.T) {
	s := start(t)
	l := s.locker()
	left := func(key string) time.Duration { return s.client.PTTL(ctx, key).Val() }
	takesLong := func(context.Context, *Hold) error { time.Sleep(3 * time.Second); return nil }
	if ran, err := l.Once(ctx, "short", 10*time.Second, nothing, IfItFails(Again)); !ran || err != nil || left("short") > 11*time.Second {
		t.Fatal(ran, err, left("short"))
	}
	long := []Option{IfItFails(Again), Lease(2 * time.Second)}
	if ran, err := l.Once(ctx, "long", time.Hour, takesLong, long...); !ran || err != nil || left("long") < 59*time.Minute {
		t.Fatal(ran, err, left("long"))
	}
	if ran, err := l.Once(ctx, "over", 200*time.Millisecond, takesLong, IfItFails(Again)); !ran || err != nil || s.mode("over") != "free" {
		t.Fatal(ran, err, s.mode("over"))
	}
	isStopped := false
	ran, err := l.Once(ctx, "over", 200*time.Millisecond, func(ctx context.Context, _ *Hold) error {
		<-ctx.Done()
		isStopped = true
		return nil
	})
	if !ran || !errors.Is(err, ErrLost) || !isStopped {
		t.Fatal(ran, err)
	}
}

func TestWhatMakesNoSenseOnce(t *testing.T) {
	s := start(t)
	l := s.locker()
	for _, choices := range [][]Option{{IfItFails("never")}, {Read()}, {Limit(2)}, {Session()}, {Owner("me")}, {NoRenewal()}, {MaxQueue(1)}} {
		if ran, err := l.Once(ctx, "k", time.Hour, nothing, choices...); ran || !errors.Is(err, ErrArgument) {
			t.Error(ran, err)
		}
	}
	for _, every := range []time.Duration{0, 8 * 24 * time.Hour} {
		if _, err := l.Once(ctx, "k", every, nothing); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	}
	if _, err := l.Once(ctx, "k", time.Hour, nil); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
	if _, err := l.Lock(ctx, "k", IfItFails(Again)); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
	if s.mode("k") != "free" {
		t.Error(s.mode("k"))
	}
}
