package rlocktest_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"rlock.example/rlock"
	"rlock.example/rlock/rlocktest"
)

func TestThatTheSecondOneWaits(t *testing.T) {
	if os.Getenv("RLOCK_MODULE") == "" {
		t.Skip("RLOCK_SERVER and RLOCK_MODULE say which server, with which module")
	}
	ctx, server := context.Background(), rlocktest.Start(t, "--maxclients", "50")
	locker, err := rlock.New(server.Client())
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	if _, err := locker.Lock(ctx, "order:42"); err != nil {
		t.Fatal(err)
	}
	if _, err := locker.TryLock(ctx, "order:42"); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Error(err)
	}
	if most := server.Client().ConfigGet(ctx, "maxclients").Val()["maxclients"]; most != "50" {
		t.Error(most)
	}
	server.Kill()
	server.Again()
	if count := server.Client().Exists(ctx, "order:42").Val(); count != 0 {
		t.Error("it has data")
	}
	if other := rlocktest.Start(t, "--requirepass", "secret"); other.Addr() == server.Addr() {
		t.Error(other.Addr())
	}
}
