#!/usr/bin/env bash
# Real failovers, one after the other: the primary loses its replicas, dies, and one of them takes over. What was confirmed
# must be there; in the same rounds, clients without ACKS lose some. On each of SERVERS:
#
#   FAILOVERS=200                        so many (100)
#   SERVERS="redis-8.0 valkey-9.1"       on those, and not on the default server
#   VARIANT=two,sentinel                 only of these kinds
#   SEED=n                               the same choices again
#   KEEP=folder                          what was claimed and what was lost, a file of JSON lines for each server;
#                                        scripts/count-claims.py counts again
#   RLOCK_MODULE=file                    that module, instead of building one
#
# `failovers.sh grace`: without ACKS, with a grace as long as the longest lease, where no two owners may hold at once, and
# some with a shorter one, where they must.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

prepare_runs
if [ -n "${KEEP-}" ]; then
    RLOCK_KEEP=$(realpath -m "$KEEP")
    RLOCK_COMMIT=$(git describe --always --dirty)
    export RLOCK_KEEP RLOCK_COMMIT
fi
export RLOCK_FAILOVERS=${FAILOVERS:-100}
on_servers "${SERVERS:-default}" cargo bench --quiet --locked --bench torture -- "${1:-failovers}"
