#!/usr/bin/env bash
# A thousand workers in twenty processes, ten permits (`LIMIT 10`), and `kill -9` of processes whose workers hold some:
# for half of the time permits with a lease, then with SESSION. RLOCK_SECONDS (`make permits` has it from SECONDS; 120)
# on the default server, or on each of SERVERS.
#
#   SERVERS="redis-8.0 valkey-9.1"   on those, and not on the default server
#   SEED=n                           the same choices again
#   RLOCK_MODULE=file                that module, instead of building one
# `permits.sh redisson`: the same work with Redisson's RPermitExpirableSemaphore by its own client, in ten JVMs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

prepare_runs
export RLOCK_SECONDS=${RLOCK_SECONDS:-120}
# A connection for each of them, at the server.
ulimit -n 4096 2>/dev/null || true
words=(permits)
if [ "${1-}" = redisson ]; then
    bench/peers/java/setup.sh
    words+=(redisson "$root/bench/peers/java/permits.sh")
fi
on_servers "${SERVERS:-default}" cargo bench --quiet --locked --bench torture -- "${words[@]}"
