#!/usr/bin/env bash
# Builds the worker, a program of the workspace that uses this project's package for Rust.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

cd "$root"
. "$tools/env"
build_tools -p rlock-peer
