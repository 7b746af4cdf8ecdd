#!/usr/bin/env bash
# `make test` runs this script. It runs every check to the end, even if one fails. Each part prints its name, what comes
# next and how long it took. The last lines are the times of all parts and the sum. `test.sh lint` runs only the checks
# that run no test; `test.sh check` runs these and the core's tests.
#
# The core's tests need no server and little compilation, so they come first. The tests on real servers mostly wait, and
# the packages of the other languages mostly compile. So these two run at the same time, once the first tests are
# compiled, and the gate, which counts instructions, follows the packages. Their output is printed when both are done.
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
    formatting
    step cargo clippy --workspace --all-targets --locked -- -D warnings || true
    texts
}

formatting() { step cargo fmt --all --check || true; }

texts() {
    step scripts/mutants.sh lists || true
    command -v python3 >/dev/null || return 0
    step scripts/texts.py || true
    step scripts/circles.py || true
}

# The parts of a whole run, in their order. Each is a function and its title.
parts=(
    'without_servers|tests of the core, the engine and the simulation'
    'lints|formatting, clippy and texts'
    'compile|compilation of the other tests'
    'on_servers|tests on real servers'
    'run_torture|torture, the short profile'
    'wait_for_packages|packages and examples in all languages; allocations and instructions'
)

test_all() {
    RLOCK_MODULE=$(module)
    export RLOCK_MODULE
    # Without optimisation, the programs beside the module compile in less than half of the CPU time (180 s instead of
    # 405 s). The gate measures only the module and the core.
    export CARGO_PROFILE_TOOLS_OPT_LEVEL=0
    export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
    export RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}

    lines=$tools/packages.log built=$tools/module.built
    rm -f "$built"
    local number part start next times=()
    for number in "${!parts[@]}"; do
        part=${parts[number]} start=$SECONDS next=${parts[number + 1]-|the sum}
        say "== part $((number + 1)) of ${#parts[@]}: ${part#*|} (next: ${next#*|})"
        "${part%%|*}"
        times+=("$(printf '%5d s  %s' $((SECONDS - start)) "${part#*|}")")
        say "== ${part#*|}: $((SECONDS - start)) s"
    done
    printf '%s\n' "${times[@]}" "$(printf '%5d s  in all' "$SECONDS")"
}

# These tests are compiled alone, so that the first results come soon. Then the work that runs at the same time is
# started.
without_servers() {
    cargo test --locked --no-run "${tested[@]}" --test all || true # if this fails, run_tests fails again, and counts it
    # A separate process group, so that an interrupted run leaves no process behind.
    set -m
    { step cargo build --release --locked && say "$RLOCK_MODULE" >"$built" && packages; } >"$lines" 2>&1 </dev/null &
    second=$!
    set +m
    trap 'kill -- -$second 2>/dev/null || true' EXIT
    run_tests "${tested[@]}" --test all
}

compile() {
    step cargo test --locked --no-run "${tested[@]}" || true
    while [ ! -s "$built" ] && kill -0 $second 2>/dev/null; do sleep 0.2; done
    if [ ! -s "$built" ]; then
        cat "$lines" # without a module, every other part would only fail for the same reason
        failed=$((failed + 1))
        sum_up
    fi
}

on_servers() {
    run_tests "${tested[@]}" --lib --test server --test planted
    run_tests "${tested[@]}" --doc
}

wait_for_packages() {
    wait $second || true
    trap - EXIT
    cat "$lines"
    count_lines "$lines"
}

# Each language's example and package counts as one test, and so does each scenario of the clients' conformance script.
# The gate is one test. A part whose tools are missing says SKIPPED. Each of these scripts prints its sum.
packages() {
    local script
    for script in 'examples.sh' 'clients.sh short' 'page.sh' 'bench.sh gate'; do
        say "== scripts/$script"
        # shellcheck disable=SC2086 # a script and its arguments
        scripts/$script || true
        say "== done: scripts/$script"
    done
}

# Adds the sums that `packages` printed. A script that ended before its sum counts as failed.
count_lines() {
    local p f s
    read -r p f s < <(awk '
        /^== scripts\// { sums = 0 }
        /^[0-9]+ passed, [0-9]+ failed/ { sums++; line_p = $1; line_f = $3; line_s = $5 }
        /^== done: / { p += line_p; f += line_f + !sums; s += line_s; done++; line_p = line_f = line_s = 0 }
        END { print p + 0, f + 4 - done, s + 0 }' "$1")
    remember packages < <(sed -n 's/^FAILED //p' "$1")
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

main "$@"
