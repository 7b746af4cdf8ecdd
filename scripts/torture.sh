#!/usr/bin/env bash
# First the simulated crowd at one lock, ten million steps of it (or STEPS), with a clock that only the test turns.
# Then real servers under load, with faults, for about RLOCK_SECONDS (`make torture` has it from SECONDS; 600):
# on the default server, or on those named: scripts/torture.sh redis-8.0 valkey-8.1 valkey-9.1.
# FAULT and WORKLOAD, names with commas between them, choose a part, and leave the simulation out.
# The seed is printed; SEED=n makes the same choices again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
unset RLOCK_MODULE # always that of this checkout
prepare_runs
if [ -z "${FAULT-}${WORKLOAD-}" ]; then
    RLOCK_STEPS=${STEPS:-10000000} \
        cargo test --release --locked -p rlock-core --test all waiting::a_simulated_day -- --nocapture
fi
export RLOCK_SECONDS=${RLOCK_SECONDS:-600}
on_servers "${*:-default}" cargo bench --quiet --locked --bench torture
