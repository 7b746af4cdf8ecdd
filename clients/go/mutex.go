package rlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Mutex is the lock of a key as a [sync.Locker], and so is [RWMutex.RLocker]. It cannot return an error, so it panics
// when the server refuses, and when Unlock finds that the lock was lost. During another panic, a deferred Unlock logs
// the loss with [slog] instead, and the other panic continues.
type Mutex struct {
	l       *Locker
	key     string
	choices []Option
	mu      sync.Mutex
	holds   []*Hold
}

// Mutex returns the lock of key. It takes the options of [Locker.Lock].
func (l *Locker) Mutex(key string, choices ...Option) *Mutex {
	return &Mutex{l: l, key: key, choices: choices}
}

// Lock waits for the lock. It panics if the lock cannot be acquired.
func (m *Mutex) Lock() {
	hold, err := m.l.Lock(context.Background(), m.key, m.choices...)
	if err != nil {
		panic(fmt.Errorf("rlock: locking %s: %w", m.key, err))
	}
	m.push(hold)
}

// TryLock takes the lock if it is free.
func (m *Mutex) TryLock() bool {
	hold, err := m.l.TryLock(context.Background(), m.key, m.choices...)
	if errors.Is(err, ErrNotAcquired) {
		return false
	} else if err != nil {
		panic(fmt.Errorf("rlock: locking %s: %w", m.key, err))
	}
	m.push(hold)
	return true
}

// Unlock releases the lock. It panics if the lock is not held, or no longer.
func (m *Mutex) Unlock() {
	if err := m.unlock(); err != nil {
		fail(recover(), err) // only a deferred function itself can see a panic
	}
}

// fail panics with err, unless another panic is in progress: then that one continues.
func fail(underWay any, err error) {
	if underWay == nil {
		panic(err)
	}
	slog.Warn(fmt.Sprintf("the unlock during a panic failed: %v", err))
	panic(underWay)
}

func (m *Mutex) unlock() error {
	m.mu.Lock()
	if len(m.holds) == 0 {
		m.mu.Unlock()
		return fmt.Errorf("rlock: unlock of %s, which is not locked", m.key)
	}
	hold := m.pop()
	m.mu.Unlock()
	return hold.Release()
}

// pop takes a lost hold if there is one: a newer one that is not lost may belong to another goroutine. Otherwise, it
// takes the newest.
func (m *Mutex) pop() *Hold {
	newest := len(m.holds) - 1
	at := slices.IndexFunc(m.holds, func(hold *Hold) bool {
		// Once the write lock has been granted again, earlier grants are lost, even if nobody has noticed.
		isOld := hold.tenure != m.holds[newest].tenure && hold.tenure.o.mode == "WRITE"
		return isOld || !hold.IsHeld()
	})
	if at < 0 {
		at = newest
	}
	hold := m.holds[at]
	m.holds = slices.Delete(m.holds, at, at+1)
	return hold
}

// Hold returns the current hold, or nil if there is none: it has the token, and the context that ends with a loss.
func (m *Mutex) Hold() *Hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.holds) == 0 {
		return nil
	}
	return m.holds[len(m.holds)-1]
}

func (m *Mutex) push(hold *Hold) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds = append(m.holds, hold)
}

// RWMutex has the methods of a [sync.RWMutex].
type RWMutex struct{ write, read *Mutex }

// RWMutex returns the read-write lock of key.
func (l *Locker) RWMutex(key string, choices ...Option) *RWMutex {
	reading := append(append([]Option{}, choices...), Read())
	return &RWMutex{l.Mutex(key, choices...), l.Mutex(key, reading...)}
}

// Lock waits for the write lock.
func (m *RWMutex) Lock() { m.write.Lock() }

// TryLock takes the write lock if it is free.
func (m *RWMutex) TryLock() bool { return m.write.TryLock() }

// Unlock releases the write lock.
func (m *RWMutex) Unlock() {
	if err := m.write.unlock(); err != nil {
		fail(recover(), err)
	}
}

// RLock waits for the read lock.
func (m *RWMutex) RLock() { m.read.Lock() }

// TryRLock takes the read lock if no writer holds it or waits for it.
func (m *RWMutex) TryRLock() bool { return m.read.TryLock() }

// RUnlock releases the read lock.
func (m *RWMutex) RUnlock() {
	if err := m.read.unlock(); err != nil {
		fail(recover(), err)
	}
}

// RLocker returns the read lock as a [sync.Locker].
func (m *RWMutex) RLocker() sync.Locker { return m.read }
