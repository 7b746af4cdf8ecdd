package main

import (
	"context"
	"fmt"
	"time"

	"rlock.example/rlock"
)

// several runs the commands for several locks and for elections.
func (r *runner) several(q request) (reply, error) {
	ok := reply{"ok": true}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch q.Do {
	case "all":
		all := r.clients[q.Client].locker.All(ones(q), options(q)...)
		r.locks[q.Lock] = &lock{client: r.clients[q.Client], acquire: all.Lock}
		return ok, all.Err()
	case "any":
		one := r.clients[q.Client].locker.Any(q.Key, q.Each, options(q)...)
		r.locks[q.Lock] = &lock{client: r.clients[q.Client], acquire: one.Lock}
		return ok, nil
	case "election":
		election := r.clients[q.Client].locker.Election(q.Key, q.Name)
		r.locks[q.Lock] = &lock{client: r.clients[q.Client], acquire: election.Campaign, election: election}
		return ok, nil
	case "observe":
		told := &sighting{}
		r.told[q.Observer] = told
		leaders := r.locks[q.Lock].election.Observe(context.Background())
		go func() {
			for leader := range leaders {
				name := leader.Name()
				told.mu.Lock()
				told.name, told.at = &name, time.Now().UnixMilli()
				told.mu.Unlock()
			}
		}()
		return ok, nil
	}
	told := r.told[q.Observer]
	r.mu.Unlock()
	defer r.mu.Lock()
	for end := time.Now().Add(time.Duration(q.Within) * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		told.mu.Lock()
		name, at := told.name, told.at
		told.mu.Unlock()
		if name != nil && *name == q.Name {
			return reply{"ok": true, "at": at}, nil
		}
	}
	return reply{"ok": false}, nil
}

// ones returns pairs of a key and its mode.
func ones(q request) (ones []rlock.One) {
	for _, pair := range q.Keys {
		key := fmt.Sprint(pair[0])
		switch how := pair[1].(type) {
		case float64:
			ones = append(ones, rlock.LimitKey(key, int(how)))
		default:
			if how == "read" {
				ones = append(ones, rlock.ReadKey(key))
			} else {
				ones = append(ones, rlock.Key(key))
			}
		}
	}
	return ones
}
