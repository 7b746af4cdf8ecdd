#!/usr/bin/env bash
# What `make test` runs: every check, to the end even if one fails, and the sum as the last line.
# `test.sh lint`: only the checks that run no test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

step scripts/setup.sh || sum_up
. "$tools/env"

step cargo fmt --all --check || true
step cargo clippy --workspace --all-targets --locked -- -D warnings || true
if [ "${1-}" = lint ] && [ "$failed" = 0 ]; then
    exit
elif [ "${1-}" = lint ]; then
    sum_up
fi

step cargo build --release --locked || sum_up # without a module the rest would only repeat that
run_tests -p rlock-core
RLOCK_MODULE=$(module)
export RLOCK_MODULE
export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
export RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}
run_tests -p rlock
run_torture
gate=0
scripts/bench.sh gate || gate=$?
case $gate in
    0) passed=$((passed + 1)) ;;
    77) ;; # said why
    *) failed=$((failed + 1)) ;;
esac
sum_up
