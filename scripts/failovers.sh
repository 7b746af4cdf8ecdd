#!/usr/bin/env bash
# Real failovers, one after another: the primary loses its replicas and dies, and one of them takes over. Every
# confirmed grant must survive. In the same rounds, clients without ACKS lose some grants. On each of SERVERS:
#
#   FAILOVERS=200                        this many failovers (100)
#   SERVERS="redis-8.0 valkey-9.1"       on these instead of the default server
#   VARIANT=two,sentinel                 only these kinds
#   SEED=n                               makes the same choices again
#   KEEP=folder                          writes what was claimed and what was lost there, a file of JSON lines for
#                                        each server; scripts/count-claims.py counts them again
#   RLOCK_MODULE=file                    uses that module instead of building one
#
# `failovers.sh rivals`: Redisson's locks and redsync's take part, through their own clients, in the failovers by Sentinel
# and by a Cluster. What they lose is counted, and is no failure.
#
# `failovers.sh grace`: failovers without ACKS. If the grace is as long as the longest lease, no two owners may hold a
# lock at once. In some rounds it is shorter, and then two owners must hold a lock at once.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

# The servers of the variant `skewed` run with this. Without a C compiler, that variant is left out.
build_skew() {
    cc -shared -fPIC -O2 -Wall -Wextra -Werror -o "$tools/skew.so" tests/torture/skew.c || return
    export RLOCK_SKEW=$tools/skew.so
}

prepare_runs
case ,${VARIANT:-skewed}, in *,skewed,*) build_skew || say 'no skewed clocks: there is no C compiler' ;; esac
if [ -n "${KEEP-}" ]; then
    RLOCK_KEEP=$(realpath -m "$KEEP")
    RLOCK_COMMIT=$(git describe --always --dirty)
    export RLOCK_KEEP RLOCK_COMMIT
fi
export RLOCK_FAILOVERS=${FAILOVERS:-100}
words=("${1:-failovers}")
if [ "${1-}" = rivals ]; then
    bench/peers/java/setup.sh
    bench/peers/go/setup.sh
    words=(failovers "$root/bench/peers/java/rival.sh" "$tools/peers/go/worker")
    export VARIANT=${VARIANT:-sentinel,long,cluster}
fi
on_servers "${SERVERS:-default}" cargo bench --quiet --locked --bench torture -- "${words[@]}"
