#!/usr/bin/env bash
# Measures redsync, and RLOCK through the same client for comparison. "Threads" are goroutines.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

redis="go-redis $(go_version github.com/redis/go-redis/v9)"

contenders=1000 # goroutines cost little
all_work "redsync $(go_version github.com/go-redsync/redsync/v4) by $redis" \
    'one server, one client per process; lease 8 s, 32 tries every 50..250 ms: its defaults' \
    "$go_worker" redsync
if arrivals_only; then
    all_work 'RLOCK, package for Go' "$redis; its defaults" "$go_worker" package
    exit $code
fi
all_work "RLOCK by $redis" 'a connection per contender, BLOCK 0, lease 30 s' "$go_worker" RLOCK
exit $code
