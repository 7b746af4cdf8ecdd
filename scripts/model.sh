#!/usr/bin/env bash
# Visits every state of a small town of locks, breadth first: more than ten million states in all, or STATES of each
# profile. Then visits every situation of groups that wait for two locks, in the engine. Prints how often each action
# and each answer occurred. If a law breaks, prints the shortest way to that state.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
export RLOCK_STATES=${STATES:-4400000}
cargo test --release --locked -p rlock-core --test all -- --nocapture model_check::
cargo test --release --locked -p rlock-engine --test all -- --nocapture every_situation_of_groups
