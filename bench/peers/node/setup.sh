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
build_packages node
fetch npm ci --prefix "$fetched" --no-audit --no-fund
rm -rf "$fetched/node_modules/rlock-client"
cp -r "$packages/node" "$fetched/node_modules/rlock-client"
rm -rf "$fetched/node_modules/rlock-client/node_modules" # those of the peers are used
