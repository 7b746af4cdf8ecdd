#!/usr/bin/env bash
# Fetches ioredis and node-redlock from the npm registry, with the versions pinned in package-lock.json, into
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
rm -rf "$fetched/node_modules/rlock-client/node_modules" # have it use the peers' modules
