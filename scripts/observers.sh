#!/usr/bin/env bash
# Hand-offs of one lock while 10 000 connections observe it, or another lock, on each of SERVERS (default). Takes minutes
# and a quiet machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
prepare_runs
on_servers "${SERVERS:-default}" \
    cargo test --locked -p rlock-tests --test server -- --ignored --nocapture observers::hand_offs
