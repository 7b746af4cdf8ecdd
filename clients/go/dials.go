package rlock

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"rlock.example/rlock/internal/machine"
)

// dials limits connection attempts to one server: one at a time, and none for a moment after a failed one, however many
// callers wait.
type dials struct {
	mu         sync.Mutex
	isDialling bool
	restsUntil machine.Ms
	err        error         // of the last one
	over       chan struct{} // closed when the one under way has ended
}

// ready is called before a dial: it returns when no other dial is in progress, and fails for a moment after a failed
// one. go-redis logs each dial that fails, even one that only waited for another.
func (d *dials) ready(ctx context.Context) error {
	for {
		d.mu.Lock()
		rests, isDialling, err, over := now() < d.restsUntil, d.isDialling, d.err, d.over
		d.mu.Unlock()
		switch {
		case rests:
			return err
		case !isDialling:
			return nil
		}
		select {
		case <-over:
		case <-ctx.Done():
			return unsent(ctx.Err())
		}
	}
}

// dial dials with its own time limit: others wait for the same server.
func (d *dials) dial(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	for {
		d.mu.Lock()
		rests, isDialling, err := now() < d.restsUntil, d.isDialling, d.err
		if !rests && !isDialling {
			d.isDialling, d.over = true, make(chan struct{})
		}
		over := d.over
		d.mu.Unlock()
		switch {
		case rests:
			return nil, err
		case isDialling:
			select {
			case <-over:
				continue
			case <-ctx.Done():
				return nil, unsent(ctx.Err())
			}
		}
		dialled := make(chan net.Conn)
		go func() {
			patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), duration(machine.Reply))
			defer cancel()
			conn, err := dial(patient)
			if err != nil {
				conn = nil // go-redis returns a nil *tls.Conn
			}
			d.note(err)
			close(over)
			select {
			case dialled <- conn:
			case <-ctx.Done():
				if conn != nil {
					conn.Close()
				}
			}
		}()
		select {
		case conn := <-dialled:
			if conn == nil {
				continue // the others fail with the same error
			}
			return d.unproven(conn), nil
		case <-ctx.Done():
			return nil, unsent(ctx.Err())
		}
	}
}

// unprovenConn is a connection that counts as failed if it ends before its first byte: something other than the server
// accepted it, such as a load balancer.
type unprovenConn struct {
	net.Conn
	dials   *dials
	isKnown atomic.Bool
}

func (f *unprovenConn) Read(into []byte) (int, error) {
	count, err := f.Conn.Read(into)
	if (count > 0 || err != nil) && !f.isKnown.Swap(true) && count == 0 {
		f.dials.note(err)
	}
	return count, err
}

// unproven wraps a new connection. It passes on syscall.Conn if there is one: the pool uses it to check whether the
// connection has ended, and treats a failed check as the end.
func (d *dials) unproven(conn net.Conn) net.Conn {
	f := &unprovenConn{Conn: conn, dials: d}
	if raw, is := conn.(syscall.Conn); is {
		return struct {
			*unprovenConn
			syscall.Conn
		}{f, raw}
	}
	return f
}

func (d *dials) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isDialling = false; err != nil { // what failed a moment ago stays the reason of a rest
		d.err, d.restsUntil = unsent(err), now()+machine.Dials/2+rand.N(machine.Dials)
	}
}

// unsent marks an error after which nothing was sent.
func unsent(err error) error {
	if err == nil || isUnsent(err) {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: err}
}
