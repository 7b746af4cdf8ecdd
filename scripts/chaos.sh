#!/usr/bin/env bash
# Busy sessions on servers with four I/O threads, whose locks are taken away and whose connections are killed: the
# server must live, and no command of a session may run once its hold is lost. RLOCK_SECONDS (`make chaos` has it
# from SECONDS; 600) on each of the servers that have such threads.
#
#   SERVERS="default valkey-8.1"     only on those
#   SEED=n                           the same choices again
#   RLOCK_MODULE=file                that module, instead of building one
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

read -ra names <<<"${SERVERS:-redis-8.0 valkey-8.0 valkey-8.1 valkey-9.1}"
if [ -n "${SEED-}" ]; then export RLOCK_SEED=$SEED; fi
scripts/setup.sh
. "$tools/env"
if [ -z "${RLOCK_MODULE-}" ]; then
    cargo build --release --locked
    RLOCK_MODULE=$(module)
fi
export RLOCK_MODULE RLOCK_SECONDS=${RLOCK_SECONDS:-600}

code=0
for name in "${names[@]}"; do
    [ "$name" = default ] || scripts/server.sh "$name" || {
        [ $? = 77 ] || code=1
        continue
    }
    server=$tools/servers/$name/redis-server
    say "== $name ($(server_version "$server")), $RLOCK_SECONDS s"
    RLOCK_SERVER=$server cargo test --quiet --locked --bench torture -- chaos || code=1
done
exit $code
