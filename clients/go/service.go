package rlock

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"rlock.example/rlock/internal/machine"
)

// service is one server, one primary with its replicas, or one Cluster, whatever its addresses are: it is identified by
// what the servers report about themselves. All Lockers of a service in this process count the levels of an owner
// together.
type service struct{ _ byte } // two of them have two addresses

var known = struct {
	sync.Mutex
	services map[string]*service
}{services: map[string]*service{}}

// met records IDs of servers. They belong to the service that any of them is known to belong to.
func (s *servers) met(ids ...string) {
	known.Lock()
	defer known.Unlock()
	same := s.service.Load()
	for _, id := range ids {
		if same == nil {
			same = known.services[id]
		}
	}
	if same == nil {
		same = &service{}
	}
	for _, id := range ids {
		if known.services[id] == nil {
			known.services[id] = same
		}
	}
	s.service.Store(same)
}

var runID = regexp.MustCompile(`run_id:(\w+)`)

// meet asks a server for its identity, on a new connection and before anything else. A user that may not ask identifies
// the server by its address or, behind Sentinel, as a service that no other Locker shares.
func (s *servers) meet(ctx context.Context, n *node, conn *redis.Conn) error {
	if n.isKnown.Load() {
		return nil
	}
	about, err := conn.Info(ctx, "server").Result()
	if isBroken(err) {
		return err
	}
	s.isServer(n, about)
	n.isKnown.Store(true)
	return nil
}

// isServer records what n reports about itself.
func (s *servers) isServer(n *node, about string) {
	var ids []string
	if n.options.Addr != failover { // Sentinel's services have no address that others could know them by
		ids = append(ids, n.name)
	}
	if id := runID.FindStringSubmatch(about); id != nil {
		ids = append(ids, fmt.Sprint(id[1], "/", n.options.DB))
	}
	s.met(ids...)
}

// identify asks the servers for their identity. Nodes of a Cluster have IDs that survive restarts and failovers.
func (s *servers) identify(ctx context.Context) error {
	if s.cluster == nil {
		n := s.at("", nil)
		return n.known(n.client.Load().Ping(ctx).Err())
	}
	slots, err := s.cluster.ClusterSlots(ctx).Result()
	if err != nil && strings.Contains(err.Error(), "cluster support disabled") { // Sentinel, by redis.NewFailoverClusterClient
		return s.identifyPrimary(ctx)
	}
	err = faultOf("the Cluster", err)
	var ids []string
	for _, slot := range slots {
		for _, node := range slot.Nodes {
			ids = append(ids, node.ID)
		}
	}
	if err == nil {
		s.met(ids...)
	}
	return err
}

// identifyPrimary asks the only primary of a Cluster client that is behind Sentinel.
func (s *servers) identifyPrimary(ctx context.Context) error {
	n, err := s.locate(ctx, "")
	if err != nil {
		return err
	}
	about, err := n.client.Load().Info(ctx, "server").Result()
	if isBroken(err) {
		return n.known(err)
	}
	s.isServer(n, about)
	return nil
}

// service asks the servers for their identity if it is unknown, within the patience of an acquisition.
func (l *Locker) service(ctx context.Context, by machine.Ms, notice *notice) (*service, error) {
	var trouble error
	by = min(by, machine.After(now(), l.outage))
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		if known := l.servers.service.Load(); known != nil {
			return known, nil
		}
		if trouble != nil && remaining(by) <= 0 {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, typed(trouble))
		}
		most := min(duration(machine.Patience), remaining(by))
		asking, cancel := context.WithTimeout(ctx, most+duration(machine.Late))
		stop := context.AfterFunc(l.draining, cancel)
		err, isOver := heed(asking, func() error { // those of a Cluster do not even hear of deadlines
			asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
			defer cancel()
			return l.servers.identify(asking)
		})
		if stop(); !isOver {
			err = context.DeadlineExceeded
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, ended(ctx, trouble)
		case l.isDraining():
			return nil, redis.ErrClosed
		case err == nil:
			continue
		case !isPassing(err):
			return nil, typed(err)
		}
		trouble = err
		notice.give(trouble)
		select {
		case <-ctx.Done():
		case <-time.After(min(pause, remaining(by))):
		}
	}
}
