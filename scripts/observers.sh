#!/usr/bin/env bash
# Hand-offs of one lock while 10 000 connections observe it, or another lock. Takes minutes and a quiet machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
scripts/setup.sh
. "$tools/env"
cargo build --release --locked
RLOCK_MODULE=$(module)
export RLOCK_MODULE
export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
export RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}
cargo test --locked -p rlock --test server -- --ignored --nocapture observers::hand_offs
