#!/usr/bin/env bash
# A thousand workers in twenty processes share ten permits (`LIMIT 10`). `kill -9` ends processes whose workers hold
# some of them: during the first half the permits have a lease, during the second SESSION. The test takes RLOCK_SECONDS
# (`make permits` sets it from SECONDS; default 120) on the default server, or on each of SERVERS.
#
#   SERVERS="redis-8.0 valkey-9.1"   on these instead of the default server
#   SEED=n                           makes the same choices again
#   RLOCK_MODULE=file                uses that module instead of building one
# `permits.sh redisson` does the same work with Redisson's RPermitExpirableSemaphore and its own client, in ten JVMs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

prepare_runs
export RLOCK_SECONDS=${RLOCK_SECONDS:-120}
# At the server, each worker has a connection.
ulimit -n 4096 2>/dev/null || true
words=(permits)
if [ "${1-}" = redisson ]; then
    bench/peers/java/setup.sh
    words+=(redisson "$root/bench/peers/java/rival.sh")
fi
on_servers "${SERVERS:-default}" cargo bench --quiet --locked --bench torture -- "${words[@]}"
