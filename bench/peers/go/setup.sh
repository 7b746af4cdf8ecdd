#!/usr/bin/env bash
# redsync, go-redis and pgx by Go's modules, as go.sum pins them, and the worker, into
# .tools/peers/go.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
build_go_worker
