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
run_tests -p rlock-simulation
RLOCK_MODULE=$(module)
export RLOCK_MODULE
export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
export RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}
run_tests -p rlock
run_torture
# Each language's example counts as one test; one whose tools are missing says SKIPPED.
say '== scripts/examples.sh'
lines=$(mktemp "$tools/examples.XXXXXX")
scripts/examples.sh 2>&1 | tee "$lines" || true
read -r p f s < <(awk '/^ok / { p++ } /^FAILED / { f++ } /^SKIPPED / { s++ } END { print p + 0, f + 0, s + 0 }' "$lines")
rm -f "$lines"
# A run that ended before its first example failed as well.
[ $((p + f + s)) -gt 0 ] || f=1
passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
gate=0
scripts/bench.sh gate || gate=$?
case $gate in
    0) passed=$((passed + 1)) ;;
    77) ;; # said why
    *) failed=$((failed + 1)) ;;
esac
sum_up
