# shellcheck shell=bash
# Sourced by scripts/clients.sh.

package_build() {
    command -v node && command -v npm || skip 'no node with npm'
    [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || skip 'no node 20'
    local tree
    tree=$(copied node)
    cd "$tree"
    fetched "$home/node" package-lock.json npm ci --no-audit --no-fund
    rm -f ./*.tgz
    say "$tree/$(npm pack --silent)"
}

package_runners() {
    say "node-ioredis=node $home/tree/clients/node/tests/runner.mjs ioredis"
    say "node-redis=node $home/tree/clients/node/tests/runner.mjs node-redis"
}

package_test() {
    say 'ok node types (tsc --strict, when it was built)'
}
