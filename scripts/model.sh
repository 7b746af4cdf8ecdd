#!/usr/bin/env bash
# Every state of a small town of locks, breadth first: more than ten million of them in all, or STATES of each profile.
# Then every situation of groups that wait for two locks, in the engine.
# What was done and what was answered is printed with how often; a law that breaks, with the shortest way to it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
export RLOCK_STATES=${STATES:-4400000}
cargo test --release --locked -p rlock-core --test all -- --nocapture model_check::
cargo test --release --locked -p rlock-engine --test all -- --nocapture every_situation_of_groups
