package main

import (
	"context"
	"hash/fnv"
	"os"

	"github.com/jackc/pgx/v5"
)

// advisory is PostgreSQL's session-level advisory lock. Each has its own connection.
type advisory struct {
	connection *pgx.Conn
	key        int64
}

func openPostgres(ctx context.Context, key string) (handle, error) {
	connection, err := pgx.Connect(ctx, os.Getenv("PEER_POSTGRESQL"))
	hash := fnv.New64a()
	hash.Write([]byte(key))
	return advisory{connection, int64(hash.Sum64())}, err
}

func (a advisory) acquire(ctx context.Context) error {
	_, err := a.connection.Exec(ctx, "select pg_advisory_lock($1)", a.key)
	return err
}

func (a advisory) release(ctx context.Context) error {
	_, err := a.connection.Exec(ctx, "select pg_advisory_unlock($1)", a.key)
	return err
}
