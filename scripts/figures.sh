#!/usr/bin/env bash
# The figures of waiting: what a hand-off, a poll and a reader cost when few wait and when many do, how late
# the end of a lease or of a session is noticed, what a waiter takes, how fast a lock changes hands. On the
# default server, or on those named: scripts/figures.sh redis-8.0 valkey-8.1 valkey-9.1. About 3 minutes each.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
[ $# -gt 0 ] || set -- default

scripts/setup.sh
. "$tools/env"
cargo build --release --locked
RLOCK_MODULE=${RLOCK_MODULE:-$(module)}
export RLOCK_MODULE
# 10 000 connections, where the system lets us.
ulimit -n 10200 2>/dev/null || say "ulimit -n stays $(ulimit -n): figures with 10 000 connections are left out" >&2

code=0
for name in "$@"; do
    [ "$name" = default ] || scripts/server.sh "$name" || {
        [ $? = 77 ] || code=1
        continue
    }
    RLOCK_SERVER=$tools/servers/$name/redis-server cargo bench --quiet --locked --bench figures || code=1
done
exit $code
