#!/usr/bin/env bash
# The integration tests on servers other than the default one: a line for each, and the sum.
# With names as arguments, only on those.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
[ $# -gt 0 ] || set -- redis-8.0 valkey-8.1 valkey-9.1

main() {
    step scripts/setup.sh || sum_up with-skipped
    . "$tools/env"
    step cargo build --release --locked || sum_up with-skipped
    RLOCK_MODULE=$(module)
    export RLOCK_MODULE
    local name
    for name in "$@"; do
        test_on "$name"
    done
    sum_up with-skipped
}

test_on() {
    local name=$1 code=0 before=$failed log=$tools/matrix-$1.log
    scripts/server.sh "$name" || code=$?
    case $code in
        0) ;;
        77) # said why
            skipped=$((skipped + 1))
            return
            ;;
        *)
            failed=$((failed + 1))
            say "$name: FAILED, there is no such server to test on"
            return
            ;;
    esac
    export RLOCK_SERVER=$tools/servers/$name/redis-server RLOCK_CLI=$tools/servers/$name/redis-cli
    local p=$passed s=$skipped
    run_tests -p rlock >"$log"
    [ "$failed" = "$before" ] || cat "$log"
    say "$name ($(server_version "$RLOCK_SERVER")): $((passed - p)) passed," \
        "$((failed - before)) failed, $((skipped - s)) skipped"
}

main "$@"
