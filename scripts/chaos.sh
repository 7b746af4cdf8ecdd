#!/usr/bin/env bash
# Busy sessions on servers with four I/O threads. Their locks are taken away, and their connections are killed. The
# server must survive, and no command of a session may run once its hold is lost. This runs for RLOCK_SECONDS (`make
# chaos` sets it from SECONDS; default 600) on each of the servers that have such threads.
#
#   SERVERS="default valkey-8.1"     only on these
#   SEED=n                           makes the same choices again
#   RLOCK_MODULE=file                uses that module instead of building one
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

prepare_runs
export RLOCK_SECONDS=${RLOCK_SECONDS:-600}
on_servers "${SERVERS:-redis-8.0 valkey-8.0 valkey-8.1 valkey-9.1}" \
    cargo test --quiet --locked --bench torture -- chaos
