#!/usr/bin/env bash
# First, a simulated crowd at one lock, for ten million steps (or STEPS), with a clock that only the test advances. Then
# real servers under load, with faults, for about RLOCK_SECONDS (`make torture` sets it from SECONDS; default 600). They
# run on the default server, or on those named: scripts/torture.sh redis-8.0 valkey-8.1 valkey-9.1. FAULT and WORKLOAD,
# names separated by commas, select a part, and leave out the simulation. The seed is printed; SEED=n makes the same
# choices again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
unset RLOCK_MODULE # always use the module of this checkout
prepare_runs
if [ -z "${FAULT-}${WORKLOAD-}" ]; then
    RLOCK_STEPS=${STEPS:-10000000} \
        cargo test --release --locked -p rlock-core --test all waiting::a_simulated_day -- --nocapture
fi
export RLOCK_SECONDS=${RLOCK_SECONDS:-600}
on_servers "${*:-default}" cargo bench --quiet --locked --bench torture
