#!/usr/bin/env bash
# Whole servers in one process: STEPS steps (10^8 by default) of many small worlds, from SEED on. A law that breaks is
# printed with the shortest story that leads to it; what cannot be promised and was never seen makes the run red as well.
#
#   simulate.sh users             users of locks, with the machine of clients/rust: STEPS steps (10^7)
#   simulate.sh traces COUNT SEED PLANTED
#                                 the inputs and outputs of that machine, for clients/traces: on the standard output
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
step scripts/setup.sh >&2 || sum_up
. "$tools/env"
what=${1:-simulate}
shift || true
cargo run --release --locked --quiet -p rlock-simulation --bin "$what" -- "$@"
