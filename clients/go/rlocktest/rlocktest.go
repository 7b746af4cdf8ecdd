// Package rlocktest starts a real server with the RLOCK module for a test. Nothing here imitates a lock.
//
//	func TestThatTheSecondOneWaits(t *testing.T) {
//		locker, err := rlock.New(rlocktest.Start(t).Client())
//		...
//	}
//
// The environment says which one: RLOCK_MODULE is the path of librlock.so, and RLOCK_SERVER that of redis-server or
// valkey-server, unless one of these is on the PATH.
package rlocktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/started"
)

// Server is a server for one test. It has no data at first, and ends with the test.
type Server struct {
	t      testing.TB
	server *started.Server
}

// Start starts a server on a free port, with further words of its command line, such as "--maxclients", "50". The test fails
// if there is none.
func Start(t testing.TB, words ...string) *Server {
	t.Helper()
	module := os.Getenv("RLOCK_MODULE")
	if _, err := os.Stat(module); err != nil {
		t.Fatal("there is no module: set RLOCK_MODULE to the path of librlock.so: ", err)
	}
	module, err := filepath.Abs(module)
	if err != nil {
		t.Fatal(err)
	}
	return &Server{t, started.New(t, program(t), append([]string{"--loadmodule", module, "--save", ""}, words...)...)}
}

func program(t testing.TB) string {
	t.Helper()
	if given := os.Getenv("RLOCK_SERVER"); given != "" {
		return given
	}
	for _, name := range []string{"valkey-server", "redis-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no server: set RLOCK_SERVER to the path of redis-server or valkey-server")
	return ""
}

// Addr is where it listens: "127.0.0.1:PORT".
func (s *Server) Addr() string { return s.server.Addr() }

// Client is a new client of it, which is closed at the end of the test.
func (s *Server) Client() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	s.t.Cleanup(func() { client.Close() })
	return client
}

// Kill ends it, as a crash does.
func (s *Server) Kill() { s.server.Kill() }

// Again starts it again after it was killed, at the same port.
func (s *Server) Again() {
	s.t.Helper()
	s.server.Start()
}
