#!/usr/bin/env bash
# Measures hand-offs of one lock while 10 000 connections observe this lock, or another one, on each of SERVERS
# (default). Takes minutes, and needs a quiet machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
prepare_runs
on_servers "${SERVERS:-default}" \
    cargo test --locked -p rlock-tests --test server -- --ignored --nocapture observers::hand_offs
