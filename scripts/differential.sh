#!/usr/bin/env bash
# Compares the simulated server with a real one: COMMANDS random commands (100 000 by default), starting from SEED, the
# same on both. Replies, events, keys and times to live must be the same. SERVERS works as for `make matrix`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
step scripts/setup.sh || sum_up
. "$tools/env"
step cargo build --release --locked
RLOCK_MODULE=$(module)
export RLOCK_MODULE RLOCK_COMMANDS=${COMMANDS:-100000}
[ -z "${SEED-}" ] || export RLOCK_SEED=$SEED
for server in ${SERVERS:-default}; do
    [ "$server" = default ] || step scripts/server.sh "$server"
    export RLOCK_SERVER=$tools/servers/$server/redis-server
    say "== differential, $server"
    cargo test --locked -p rlock-tests --test server differential:: -- --nocapture
done
