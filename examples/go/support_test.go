package rlock

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

func lock(t *testing.T, key string, opt Options) *Hold {
	hold, err := locker.Lock(ctx, key, opt)
	if err != nil {
		t.Error(key, err)
		panic(err)
	}
	return hold
}

func unlock(t *testing.T, hold *Hold) {
	if err := hold.Unlock(); err != nil {
		t.Error(err)
	}
}

func waiters(key string) int64 {
	info, _ := client.Do(ctx, "RLOCK.INFO", key).Result()
	return info.(map[any]any)["queue-length"].(int64)
}

func acquires(t *testing.T) int {
	_, rest, _ := strings.Cut(client.Info(ctx, "commandstats").Val(), "cmdstat_rlock.acquire:calls=")
	calls, _, _ := strings.Cut(rest, ",")
	count, err := strconv.Atoi(calls)
	if err != nil {
		t.Fatal(err)
	}
	return count
}

func until(t *testing.T, isSo func() bool) {
	for end := time.Now().Add(10 * time.Second); !isSo(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Error("not within 10 seconds")
			return
		}
	}
}
