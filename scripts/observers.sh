#!/usr/bin/env bash
# Hand-offs of one lock while 10 000 connections observe it, or another lock. Takes minutes and a quiet machine. On each of
# SERVERS (default).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
prepare_runs
on_servers "${SERVERS:-default}" \
    cargo test --locked -p rlock --test server -- --ignored --nocapture observers::hand_offs
