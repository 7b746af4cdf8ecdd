# shellcheck shell=bash
# Sourced by scripts/clients.sh.

package_tools() {
    command -v node && command -v npm || skip 'no node with npm'
    [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || skip 'no node 20'
}

package_build() {
    local tree
    tree=$(copied node)
    cd "$tree"
    fetched "$home/node" package-lock.json npm ci --no-audit --no-fund
    rm -f ./*.tgz
    say "$tree/$(npm pack --silent)"
}

package_runners() {
    say "node-ioredis=node --expose-gc $home/tree/clients/node/tests/runner.mjs ioredis"
    say "node-redis=node --expose-gc $home/tree/clients/node/tests/runner.mjs node-redis"
}

package_services() { say "express=node $home/tree/clients/node/tests/rolling.mjs"; }

package_replay() { cd "$home/tree/clients/node" && node tests/traces.mjs "$TRACES"; }

package_test() {
    load ioredis
    load redis
    local options=(--ignoreConfig --noEmit --strict --target es2022 --lib 'es2023,esnext.disposable,dom' --types node --module nodenext)
    cd "$home/tree/clients/node"
    check 'node types' node_modules/.bin/tsc "${options[@]}" tests/types.mts
    check 'node: an acquisition that lost a Promise.race leaves nothing' node --expose-gc tests/race.mjs
    check 'node: a server that is not there is named, and warned of once' node tests/down.mjs
    check 'node: errors of the server in a bundle' node tests/errors.mjs
    local library
    for library in ioredis redis; do
        check "node-$library: ends, silence, mistakes" node tests/faults.mjs "$library"
        check "node-$library: sessions and elections" node tests/sessions.mjs "$library"
        check "node-$library: late replies and losses, which come as messages" node tests/messages.mjs "$library"
        check "node-$library: renewals, and the clocks" node tests/renewals.mjs "$library"
        check "node-$library: every argument, one signal for many waits" node tests/arguments.mjs "$library"
        check "node-$library: every address, and every error that lasts" node tests/addresses.mjs "$library" "$tools/servers/default/redis-server" "$RLOCK_MODULE"
        check "node-$library: listeners, counters, OpenTelemetry, extend" node tests/telemetry.mjs "$library"
        check "node-$library: losses, several locks, waits after a pause, one connection that breaks" node tests/holds.mjs "$library"
        check "node-$library: one run in each interval" node tests/once.mjs "$library"
        check "node-$library: one of many keys" node tests/any.mjs "$library"
        check "node-$library: a process that shuts down" node tests/drain.mjs "$library"
        check "node-$library: replicas, a restart, new addresses, Sentinel" node tests/servers.mjs "$library" "$tools/servers/default/redis-server" "$RLOCK_MODULE"
        check "node-$library: a slot that is being moved" node tests/slots.mjs "$library" "$tools/servers/default/redis-server" "$RLOCK_MODULE"
    done
    check 'node: a program that moved from redlock' node tests/moved.mjs "$root/docs/coming-from/redlock.md"
    check 'node: traces of the machine in Rust' node tests/traces.mjs "$root/clients/traces/golden.txt" ${RLOCK_TRACES-}
    check 'node README' node tests/readme.mjs
    check 'node: services that shut down' env RLOCK_SERVER="$tools/servers/default/redis-server" RLOCK_MODULE="$RLOCK_MODULE" node --test tests/services.mjs
    rolling node
    check 'node: a server for tests' env RLOCK_SERVER="$tools/servers/default/redis-server" RLOCK_MODULE="$RLOCK_MODULE" node --test tests/testing.mjs
    check 'node: require' node -e 'process.exit(typeof require("rlock-client").Locks === "function" ? 0 : 1)'
}

# Runs fifteen seconds of load while the server is killed, stopped and cut off, with the Python package's script.
load() {
    [ -x "$home/python/bin/python" ] || {
        say "SKIPPED node-$1 under load: no Python package to drive it"
        return 0
    }
    check "node-$1 under load" "$home/python/bin/python" -B clients/python/tests/load.py \
        "node $home/tree/clients/node/tests/load.mjs $1" "$tools/servers/default/redis-server" "$RLOCK_MODULE" 15
}
