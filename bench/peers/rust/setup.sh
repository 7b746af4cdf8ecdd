#!/usr/bin/env bash
# This project's package for Rust: the worker is a program of the workspace.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

cd "$root"
. "$tools/env"
build_tools -p rlock-peer
