#!/usr/bin/env bash
# The simulated crowd at one lock, ten million steps of it (or STEPS), with a clock that only the test turns.
# The seed is printed; SEED=n runs that one again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
export RLOCK_STEPS=${STEPS:-10000000}
if [ -n "${SEED-}" ]; then export RLOCK_SEED=$SEED; fi
cargo test --release --locked -p rlock-core --test waiting a_simulated_day -- --nocapture
