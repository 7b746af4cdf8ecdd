// Command worker contends for one lock: `worker LOCK WORK THREADS SECONDS`. ../measure.py says what it does and prints.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// handle is how one contender acquires and releases the lock that all of them want.
type handle interface {
	// acquire returns errGaveUp if the client stopped waiting by its own decision.
	acquire(context.Context) error
	release(context.Context) error
}

var errGaveUp = errors.New("the client gave up")

// now is CLOCK_MONOTONIC in nanoseconds: all processes of a machine share it.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		log.Fatal(err)
	}
	return at.Nano()
}

// contender is a goroutine that wants the lock, with its measurements.
type contender struct {
	handle
	turn chan struct{}
	mu   sync.Mutex
	// Each sample: when the contender acquired the lock (0 if it gave up), when it began to release, and when the job
	// arrived.
	samples [][]int64
}

func (c *contender) add(sample ...int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = append(c.samples, sample)
}

func (c *contender) contend(ctx context.Context) error {
	for {
		err := c.acquire(ctx)
		at := now()
		switch {
		case err == nil:
			if err := c.release(ctx); err != nil {
				return err
			}
			c.add(at, at)
		case errors.Is(err, errGaveUp):
			c.add(0, at)
		default:
			return err
		}
	}
}

// alternate acquires the lock only once the other contender holds it, so that exactly one waits at each release.
func (c *contender) alternate(ctx context.Context, next *contender) error {
	for range c.turn {
		err := c.acquire(ctx)
		for errors.Is(err, errGaveUp) {
			c.add(0, now())
			err = c.acquire(ctx)
		}
		if err != nil {
			return err
		}
		acquired := now()
		next.turn <- struct{}{}
		time.Sleep(2*time.Millisecond + rand.N(8*time.Millisecond))
		releasing := now()
		if err := c.release(ctx); err != nil {
			return err
		}
		c.add(acquired, releasing)
	}
	return nil
}

// until sleeps until that moment. The runtime's timers can be a millisecond late, so the goroutine yields for the rest.
func until(moment int64) {
	time.Sleep(time.Duration(moment-now()) - timersLate)
	for now() < moment {
		runtime.Gosched()
	}
}

const timersLate = 1200 * time.Microsecond

// serve takes jobs until there are no more. A job is the moment of its arrival.
func (c *contender) serve(ctx context.Context, jobs <-chan int64, hold int64) error {
	for arrived := range jobs {
		err := c.acquire(ctx)
		acquired := now()
		switch {
		case errors.Is(err, errGaveUp):
			c.add(0, acquired, arrived)
			continue
		case err != nil:
			return err
		}
		until(acquired + hold)
		releasing := now()
		if err := c.release(ctx); err != nil {
			return err
		}
		c.add(acquired, releasing, arrived)
	}
	return nil
}

// arrive hands each job to a free contender when it arrives, and waits for all of them.
func arrive(ctx context.Context, started int64, contenders []*contender) error {
	moments, err := os.ReadFile(os.Getenv("PEER_ARRIVALS"))
	if err != nil {
		return err
	}
	hold, err := strconv.ParseInt(os.Getenv("PEER_HOLD_NS"), 10, 64)
	if err != nil {
		return err
	}
	drain, err := strconv.ParseFloat(os.Getenv("PEER_DRAIN_SECONDS"), 64)
	if err != nil {
		return err
	}
	// The channel has room for all jobs: a job may wait for a free contender, but its arrival must not be delayed.
	jobs := make(chan int64, 1<<20)
	var serving sync.WaitGroup
	for _, c := range contenders {
		serving.Go(func() { check(c.serve(ctx, jobs, hold)) })
	}
	for _, line := range strings.Fields(string(moments)) {
		after, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return err
		}
		until(started + after)
		jobs <- started + after
	}
	close(jobs)
	served := make(chan struct{})
	go func() {
		serving.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-time.After(time.Duration(drain * float64(time.Second))):
	}
	return nil
}

func main() {
	log.SetFlags(0)
	if len(os.Args) == 2 && os.Args[1] == "claims" {
		check(claims(context.Background()))
		return
	}
	if len(os.Args) != 5 {
		log.Fatal("usage: worker LOCK WORK THREADS SECONDS")
	}
	lock, work := os.Args[1], os.Args[2]
	threads, err := strconv.Atoi(os.Args[3])
	check(err)
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	check(err)

	ctx := context.Background()
	open, err := opener(ctx, lock, os.Getenv("PEER_KEY"))
	check(err)
	contenders := make([]*contender, threads)
	for i := range contenders {
		handle, err := open()
		check(err)
		contenders[i] = &contender{handle: handle, turn: make(chan struct{}, 1)}
	}
	contenders[0].turn <- struct{}{}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	check(err)
	started := now()
	if work == "arrivals" {
		check(arrive(ctx, started, contenders))
		check(report(started, contenders))
		return
	}
	for i, c := range contenders {
		go func() {
			if work == "hand-off" {
				check(c.alternate(ctx, contenders[(i+1)%threads]))
			} else {
				check(c.contend(ctx))
			}
		}()
	}
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	check(report(started, contenders))
}

func report(started int64, contenders []*contender) error {
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(out, "started", started)
	for i, c := range contenders {
		c.mu.Lock()
		for _, sample := range c.samples {
			fmt.Fprintln(out, i, strings.Trim(fmt.Sprint(sample), "[]"))
		}
		c.mu.Unlock()
	}
	return out.Flush()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// opener returns a function that makes one contender's handle of the lock with this name.
func opener(ctx context.Context, lock, key string) (func() (handle, error), error) {
	switch lock {
	case "redsync":
		return openRedsync(ctx, key)
	case "package":
		return openPackage(ctx, key)
	case "RLOCK":
		return func() (handle, error) { return openNative(ctx, key) }, nil
	case "etcd":
		return openEtcd(ctx, key)
	case "postgresql":
		return func() (handle, error) { return openPostgres(ctx, key) }, nil
	}
	return nil, fmt.Errorf("no lock is called %q", lock)
}
