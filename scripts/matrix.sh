#!/usr/bin/env bash
# Runs the server tests on ten servers, one after another. Prints a line with counts for each, and the sum. A server
# that cannot be provided is skipped, and the line says how you can provide it.
#
#   SERVERS="redis-7.2 valkey-8.0"   only on these
#   TEST=sessions::                  only the tests with that in their names; shows what they print
#   RLOCK_MORE_SERVERS=folder        servers that have no package: NAME/redis-server and NAME/redis-cli in it; each
#                                    NAME like redis-8.4 or valkey-9 is tested, too (see scripts/server.sh)
#   RLOCK_MODULE=file                uses that module instead of building one
#
# `matrix.sh table` prints the result of the last whole run on each server, as rows for docs/servers.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
known='redis-7.0 redis-7.2 redis-7.4 redis-8.0 redis-8.2 redis-8.6 valkey-7.2 valkey-8.0 valkey-8.1 valkey-9.1'
results=$tools/matrix

main() {
    local name names
    mkdir -p "$results"
    if [ "${1-}" = table ]; then
        table
        return
    fi
    [ -d "${RLOCK_MORE_SERVERS:-/}" ] || die "RLOCK_MORE_SERVERS: there is no folder $RLOCK_MORE_SERVERS"
    read -ra names <<<"${SERVERS:-$(all_names)}"
    step scripts/setup.sh || sum_up with-skipped
    . "$tools/env"
    if [ -z "${RLOCK_MODULE-}" ]; then
        step cargo build --release --locked || sum_up with-skipped
        RLOCK_MODULE=$(module)
    fi
    export RLOCK_MODULE
    for name in "${names[@]}"; do
        test_on "$name"
    done
    sum_up with-skipped
}

# The ten servers, and the others that the folder has.
all_names() {
    local server
    {
        printf '%s\n' $known
        for server in "${RLOCK_MORE_SERVERS:-/dev/null}"/*/redis-server; do
            [ ! -x "$server" ] || basename "${server%/*}"
        done
    } | sort -u -V | paste -sd' '
}

test_on() {
    local name=$1 code=0 p=$passed f=$failed s=$skipped log=$results/$1.log counts
    scripts/server.sh "$name" || code=$?
    case $code in
        0) ;;
        77) # the script said why
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
    run_tests "${tested[@]}" --test server ${TEST:+"$TEST"} >"$log"
    if [ $((passed + failed)) = $((p + f)) ]; then
        failed=$((failed + 1))
        say "$name: FAILED, no test has ${TEST-} in its name"
        return
    fi
    [ "$failed" = "$f" ] && [ -z "${TEST-}" ] || cat "$log"
    p=$((passed - p)) f=$((failed - f)) s=$((skipped - s))
    counts="$p passed, $f failed, $s skipped"
    say "$name ($(server_version "$RLOCK_SERVER")): $counts, $(not_seen "$log") not seen"
    [ -n "${TEST-}" ] || row "$name" "$p" "$f" "$(not_seen "$log")" >"$results/$name.row"
}

# How many tests could not check their subject on this machine or server. They count as passed.
not_seen() { grep -c '^NOT SEEN HERE: ' "$1" || true; }

row() {
    local kind=Redis
    case $1 in valkey-*) kind=Valkey ;; esac
    say "| $kind $(server_version "$RLOCK_SERVER") | $(cat "$tools/servers/$1/origin") | $(date -u +%F) | $2 | $3 | $4 |"
}

table() {
    local rows=("$results"/*.row)
    [ -e "${rows[0]}" ] || die 'nothing was run: make matrix'
    say '| server | where it came from | tested on | passed | failed | not seen |'
    say '|---|---|---|---|---|---|'
    sort -V "${rows[@]}"
}

main "$@"
