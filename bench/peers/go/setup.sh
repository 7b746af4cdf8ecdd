#!/usr/bin/env bash
# Fetches redsync, go-redis and pgx as Go modules, with the versions pinned in go.sum, and builds the worker, into
# .tools/peers/go.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
build_go_worker
