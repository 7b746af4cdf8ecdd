#!/usr/bin/env bash
# What `make test` runs: every check, to the end even if one fails, and the sum as the last line.
# `test.sh lint`: only the checks that run no test; `test.sh check`: these and the core's tests.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

step scripts/setup.sh || sum_up
. "$tools/env"

step cargo fmt --all --check || true
step cargo clippy --workspace --all-targets --locked -- -D warnings || true
if command -v python3 >/dev/null; then
    step scripts/texts.py || true
fi
case ${1-} in
    lint)
        [ "$failed" != 0 ] || exit 0
        sum_up
        ;;
    check)
        run_tests -p rlock-core
        sum_up
        ;;
esac

step cargo build --release --locked || sum_up # without a module the rest would only repeat that
RLOCK_MODULE=$(module)
export RLOCK_MODULE
export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
export RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}
run_tests "${tested[@]}"
run_torture
# Each language's example and package counts as one test, and so does each scenario of the clients' conformance script;
# what lacks its tools says SKIPPED.
run_lines() {
    local lines p f s
    say "== $*"
    lines=$(mktemp "$tools/lines.XXXXXX")
    "$@" 2>&1 | tee "$lines" || true
    read -r p f s < <(awk '/^[0-9]+ passed, [0-9]+ failed/ { p = $1; f = $3; s = $5 } END { print p + 0, f + 0, s + 0 }' "$lines")
    # A run that ended before its sum failed as well.
    grep -qE '^[0-9]+ passed, [0-9]+ failed' "$lines" || f=1
    rm -f "$lines"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
run_lines scripts/examples.sh
run_lines scripts/clients.sh short
run_lines scripts/page.sh
gate=0
scripts/bench.sh gate || gate=$?
case $gate in
    0) passed=$((passed + 1)) ;;
    77) ;; # said why
    *) failed=$((failed + 1)) ;;
esac
sum_up
