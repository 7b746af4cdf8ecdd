package main

import (
	"context"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// viaEtcd is the mutex of etcd's concurrency package. Each contender has its own session, and therefore its own lease.
// All contenders of a process share one client.
type viaEtcd struct{ *concurrency.Mutex }

func openEtcd(ctx context.Context, key string) (func() (handle, error), error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{os.Getenv("PEER_ETCD")},
		Context:   ctx,
	})
	if err != nil {
		return nil, err
	}
	return func() (handle, error) {
		session, err := concurrency.NewSession(client)
		if err != nil {
			return nil, err
		}
		return viaEtcd{concurrency.NewMutex(session, key)}, nil
	}, nil
}

func (v viaEtcd) acquire(ctx context.Context) error { return v.Lock(ctx) }

func (v viaEtcd) release(ctx context.Context) error { return v.Unlock(ctx) }
