#!/usr/bin/env bash
# How long a job waits for a lock: jobs arrive at random, and each holds the one lock for 5 ms. The same arrivals for each
# lock, through its own client with its defaults: RLOCK by the packages in clients/, redis-py's Lock, node-redlock, redsync,
# Redisson, PostgreSQL, etcd, ZooKeeper. LOADS (30 50 80 95) are the percentages of the time for which a lock without any
# delay would be held. Prints a line of JSON per measurement into bench/results/wait.jsonl and draws
# docs/pictures/wait.svg. With peers (bench/peers) as arguments, or QUICK=1, only prints.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

export PEER_LOADS=${LOADS:-30 50 80 95} PEER_SECONDS=${PEER_SECONDS:-${QUICK:+3}}
export PEER_SECONDS=${PEER_SECONDS:-30}
if [ $# -gt 0 ] || [ -n "${QUICK-}" ]; then
    exec scripts/peers.sh "$@"
fi
lines=$tools/wait.jsonl
scripts/peers.sh | tee "$lines"
grep '^{' "$lines" >bench/results/wait.jsonl
python3 -B scripts/wait_curve.py
