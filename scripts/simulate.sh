#!/usr/bin/env bash
# Whole servers in one process: STEPS steps (10^8 by default) of many small worlds, from SEED on. A law that breaks is
# printed with the shortest story that leads to it; what cannot be promised and was never seen makes the run red as well.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
step scripts/setup.sh || sum_up
. "$tools/env"
cargo run --release --locked --quiet -p rlock-simulation --bin simulate
