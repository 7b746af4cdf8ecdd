#!/usr/bin/env bash
# The abuse tests of tests/server, fifty times as long: a million pairs of acquire and release, a million locks, 100 000
# waiters. The server uses the C library's malloc. The tests first prove that they report a planted leak.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
scripts/setup.sh
scripts/server.sh libc
. "$tools/env"
cargo build --release --locked
RLOCK_MODULE=$(module)
export RLOCK_MODULE RLOCK_SERVER=$tools/servers/libc/redis-server RLOCK_CLI=$tools/servers/libc/redis-cli
RLOCK_ABUSE=${TIMES:-50} cargo test --locked -p rlock-tests --test server abuse:: -- --nocapture --test-threads 1
