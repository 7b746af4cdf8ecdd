#!/usr/bin/env bash
# ioredis and node-redlock from the npm registry, as package-lock.json pins them, into
# .tools/peers/node.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
need node
need npm
mkdir -p "$fetched"
cp "$here/package.json" "$here/package-lock.json" "$fetched"
fetch npm ci --prefix "$fetched" --no-audit --no-fund
