#!/usr/bin/env bash
# Moves a slot of a cluster to and fro 50 times (or MOVES times), while clients wait for its locks.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
prepare_runs
export RLOCK_MOVES=${MOVES:-50}
export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
export RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}
cargo test --locked -p rlock-tests --test server -- --nocapture a_slot_that_moves_to_and_fro
