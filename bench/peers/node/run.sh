#!/usr/bin/env bash
# Measures node-redlock, and RLOCK through the same client for comparison. "Threads" are asynchronous functions in one
# event loop.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

export NODE_PATH=$fetched/node_modules
ioredis="ioredis $(node -p 'require("ioredis/package.json").version')"
redlock="redlock $(node -p 'require("redlock/package.json").version')"
contenders=1000 # asynchronous functions cost little
worker=(node "$here/worker.js")

all_work "$redlock by $ioredis" \
    'one server, one client per process; lease 30 s, 10 retries every 200 ms + 0..100 ms: its defaults' \
    "${worker[@]}" redlock
if arrivals_only; then
    all_work 'RLOCK, package for Node' "$ioredis; its defaults" "${worker[@]}" package
    exit $code
fi
all_work "RLOCK by $ioredis" 'a connection per contender, BLOCK 0, lease 30 s' "${worker[@]}" RLOCK
exit $code
