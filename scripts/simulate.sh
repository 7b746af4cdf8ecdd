#!/usr/bin/env bash
# Simulates whole servers in one process: STEPS steps (10^8 by default) of many small worlds, starting from SEED. If a
# law breaks, prints the shortest story that leads to it. The run also fails if one of the events that RLOCK does not
# rule out never happened in it.
#
#   simulate.sh users             simulates users of locks, with the machine of clients/rust: STEPS steps (10^7)
#   simulate.sh traces COUNT SEED PLANTED
#                                 prints the inputs and outputs of that machine, for clients/traces
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
step scripts/setup.sh >&2 || sum_up
. "$tools/env"
what=${1:-simulate}
shift || true
cargo run --release --locked --quiet -p rlock-simulation --bin "$what" -- "$@"
