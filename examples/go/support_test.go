package rlock

import (
	"os"
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

func acquires(t *testing.T) int { return info(t, "commandstats", "cmdstat_rlock.acquire:calls=") }

// process is the server itself, which runs on this machine.
func process(t *testing.T) *os.Process {
	server, err := os.FindProcess(info(t, "server", "process_id:"))
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// info is the number after label in a section of INFO.
func info(t *testing.T, section, label string) int {
	_, rest, _ := strings.Cut(client.Info(ctx, section).Val(), label)
	digits, _, _ := strings.Cut(strings.Replace(rest, "\r", ",", 1), ",")
	number, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(label, err)
	}
	return number
}

func until(t *testing.T, isSo func() bool) {
	for end := time.Now().Add(10 * time.Second); !isSo(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Error("not within 10 seconds")
			return
		}
	}
}
