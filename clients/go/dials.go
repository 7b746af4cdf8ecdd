package rlock

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"

	"rlock.example/rlock/internal/machine"
)

// dials are the dials of one server: one at a time, and none for a moment after it was not reached, whoever waits.
type dials struct {
	mu     sync.Mutex
	server machine.Server
	err    error         // of the last one
	over   chan struct{} // closed when the one under way has ended
}

// dial dials with its own patience: others wait for the same server.
func (d *dials) dial(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	for {
		d.mu.Lock()
		need, err, over := d.server.Need(now()), d.err, d.over
		if need == machine.DialNow {
			over = make(chan struct{})
			d.over = over
		}
		d.mu.Unlock()
		switch need {
		case machine.Rest:
			return nil, err
		case machine.Join:
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
				continue // the others are told the same
			}
			return conn, nil
		case <-ctx.Done():
			return nil, unsent(ctx.Err())
		}
	}
}

func (d *dials) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err = unsent(err); err == nil {
		d.server.Dialled()
	} else {
		d.server.Failed(now(), rand.N(machine.Ms(1000)))
	}
}

// unsent makes an error one by which nothing was sent.
func unsent(err error) error {
	if err == nil || isUnsent(err) {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: err}
}
