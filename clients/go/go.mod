module rlock.example/rlock

go 1.26.0

require (
	github.com/redis/go-redis/v9 v9.23.0 // the client that Go users have
	golang.org/x/sys v0.48.0 // a clock that goes on while the machine sleeps; go-redis needs it as well
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
)
