#!/usr/bin/env bash
# What `make test` runs: every check, to the end even if one fails, and the sum as the last line. `test.sh lint` runs only
# the checks that run no test, `test.sh check` these and the core's tests.
#
# The tests on real servers mostly wait, and the packages of the other languages mostly compile. So the two run side by
# side: the output of the second is printed when both are done.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

main() {
    step scripts/setup.sh || sum_up
    . "$tools/env"
    case ${1-} in
        '') test_all ;;
        lint)
            lints
            [ "$failed" != 0 ] || exit 0
            ;;
        check)
            lints
            run_tests -p rlock-core
            ;;
        *) die "usage: $0 [lint|check]" ;;
    esac
    sum_up
}

lints() {
    step cargo fmt --all --check || true
    step cargo clippy --workspace --all-targets --locked -- -D warnings || true
    if command -v python3 >/dev/null; then
        step scripts/texts.py || true
    fi
}

test_all() {
    RLOCK_MODULE=$(module)
    export RLOCK_MODULE
    export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
    export RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}

    local lines=$tools/packages.log built=$tools/module.built
    rm -f "$built"
    # A process group of its own, so that an interrupted run leaves nothing that goes on.
    set -m
    { step cargo build --release --locked && say "$RLOCK_MODULE" >"$built" && packages; } >"$lines" 2>&1 </dev/null &
    second=$!
    set +m
    trap 'kill -- -$second 2>/dev/null || true' EXIT

    lints
    step cargo test --locked --no-run "${tested[@]}" || true
    while [ ! -s "$built" ] && kill -0 $second 2>/dev/null; do sleep 0.2; done
    if [ ! -s "$built" ]; then
        cat "$lines" # without a module the rest would only repeat that
        failed=$((failed + 1))
        sum_up
    fi
    run_tests "${tested[@]}"
    run_torture
    wait $second || true
    trap - EXIT
    cat "$lines"
    count_lines "$lines"

    local gate=0
    scripts/bench.sh gate || gate=$?
    case $gate in
        0) passed=$((passed + 1)) ;;
        77) ;; # said why
        *) failed=$((failed + 1)) ;;
    esac
}

# Each language's example and package counts as one test, and so does each scenario of the clients' conformance script;
# what lacks its tools says SKIPPED. Each of these prints its sum.
packages() {
    local script
    for script in 'examples.sh' 'clients.sh short' 'page.sh'; do
        say "== scripts/$script"
        # shellcheck disable=SC2086 # a script and its arguments
        scripts/$script || true
        say "== done: scripts/$script"
    done
}

# Adds the sums that `packages` printed. A script that ended before its sum failed as well.
count_lines() {
    local p f s
    read -r p f s < <(awk '
        /^== scripts\// { sums = 0 }
        /^[0-9]+ passed, [0-9]+ failed/ { sums++; line_p = $1; line_f = $3; line_s = $5 }
        /^== done: / { p += line_p; f += line_f + !sums; s += line_s; done++; line_p = line_f = line_s = 0 }
        END { print p + 0, f + 3 - done, s + 0 }' "$1")
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

main "$@"
