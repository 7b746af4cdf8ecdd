#!/usr/bin/env bash
# RLOCK_GROUPS requests for 2 to 5 of 1000 locks, beside single ones, tickets, readers and upgrades: nobody waits
# without a cause that is shown, and nothing is left behind. A replica that is read during 10^5 grants of three locks
# never has a part of one. Processes that wait or hold are killed. On each of SERVERS (default).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
prepare_runs
export RLOCK_SEVERAL=${RLOCK_SEVERAL:-40}
on_servers "${SERVERS:-default}" \
    cargo test --locked -p rlock-tests --test server -- --nocapture group_crowds:: several::a_reader_on_a_replica
