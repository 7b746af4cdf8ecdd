// Package started has the server processes of tests.
package started

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// starts is how long a server may take to start.
const starts = 20 * time.Second

// Server is a server of one test, at whose end it is killed.
type Server struct {
	Port    int
	t       testing.TB
	program string
	words   []string
	folder  string
	process *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

// New starts a server, with these words first on its command line.
func New(t testing.TB, program string, words ...string) *Server {
	t.Helper()
	s := &Server{Port: FreePort(t), t: t, program: program, words: words, folder: t.TempDir()}
	t.Cleanup(s.Kill) // before the folder is removed
	s.Start()
	return s
}

// Addr is where it listens.
func (s *Server) Addr() string { return fmt.Sprint("127.0.0.1:", s.Port) }

// Start starts it again, after it was killed, at the same port.
func (s *Server) Start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.folder, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	words := append(append([]string{}, s.words...), "--port", fmt.Sprint(s.Port), "--bind", "127.0.0.1", "--dir", s.folder)
	s.process = exec.Command(s.program, words...)
	s.process.Stdout, s.process.Stderr = log, log
	diesWithUs(s.process)
	if err := s.process.Start(); err != nil {
		s.process = nil
		s.t.Fatal(err)
	}
	process, ended := s.process, make(chan struct{})
	s.ended = ended
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1})
	defer client.Close()
	isUp := func() bool {
		err := client.Ping(context.Background()).Err()
		return err == nil || strings.HasPrefix(err.Error(), "NOAUTH")
	}
	for end := time.Now().Add(starts); !isUp(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-ended:
		default:
			if time.Now().Before(end) {
				continue
			}
		}
		said, _ := os.ReadFile(filepath.Join(s.folder, "log"))
		s.t.Fatalf("the server did not start:\n%s", said[max(0, len(said)-2000):])
	}
}

// Kill ends it, as a crash does.
func (s *Server) Kill() {
	if s.process != nil {
		_ = s.process.Process.Kill()
		<-s.ended
	}
}

// Signal sends it a signal.
func (s *Server) Signal(signal os.Signal) { _ = s.process.Process.Signal(signal) }

// FreePort is a port that nobody has, nor the one 10000 above, which a Cluster's bus takes.
func FreePort(t testing.TB) int {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := listener.Addr().(*net.TCPAddr).Port
		listener.Close()
		if port < 50000 {
			return port
		}
	}
}
