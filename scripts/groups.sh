#!/usr/bin/env bash
# RLOCK_GROUPS requests for 2 to 5 of 1000 locks, together with requests for single locks, tickets, readers and
# upgrades. No request may wait without a visible cause, and nothing may be left behind. A replica that is read during
# 10^5 grants of three locks must never have only some of the three. Processes that wait or hold are killed. Runs on
# each of SERVERS (default).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
prepare_runs
export RLOCK_SEVERAL=${RLOCK_SEVERAL:-40}
on_servers "${SERVERS:-default}" \
    cargo test --locked -p rlock-tests --test server -- --nocapture group_crowds:: several::a_reader_on_a_replica
