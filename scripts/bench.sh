#!/usr/bin/env bash
# Compares RLOCK with its alternatives, on the default server or on those in SERVERS ("default redis-8.0 valkey-8.1
# valkey-9.1"). Prints the table of goals, and writes bench/results and docs/benchmarks.md. This takes about twenty
# minutes per server. With QUICK=1 it takes three, and nothing is written.
#
# With `acks`, `capacity`, `contended`, `hand-off`, `instructions`, `lease-end`, `long-steps`, `pair`, `peers`,
# `several` or `tell`, only that section is measured, and put into the results of earlier runs.
#
# With `wait`, measures how long jobs that arrive at random times wait for a lock, with RLOCK's packages and with other
# locks (PEER_SECONDS each), and how much locks cost a server that serves a cache: 22 minutes, on the default server.
# LOADS="30 95" (percent) or PEERS="go java" restrict it to these, and then nothing is written.
#
# With `tables`, nothing is measured, and only the tables are written again. With `gate`, checks only what continuous
# integration checks: that allocations and instructions are as recorded in bench/gate.json (RECORD=1 records new ones),
# and the steps of the core.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

main() {
    scripts/setup.sh
    . "$tools/env"
    need_valgrind
    cargo build --release --locked
    build_tools
    build_floor
    RLOCK_MODULE=$(module)
    bench=$(tools_folder)/rlock-bench
    export RLOCK_MODULE
    case ${1-} in
        gate)
            use_server default
            step "$bench" gate ${RECORD:+record} && passed=1
            sum_up with-skipped
            ;;
        wait) wait_curve ;;
        tables) "$bench" report ;;
        '') compare run ;;
        acks) compare part acknowledged ;;
        tell) if [ -n "${QUICK-}" ]; then compare tell; else compare part TELL; fi ;;
        hand-off) compare part "waiting: hand-off" ;;
        lease-end) compare part "waiting: lease end" ;;
        long-steps) compare part "long steps" ;;
        capacity | contended | instructions | pair | peers | several) compare part "$1" ;;
        *) die "usage: $0 [gate|acks|capacity|contended|hand-off|instructions|lease-end|long-steps|pair|peers|several|tables|tell|wait]" ;;
    esac
}

# bench/floor, the least work that a server needs for any module, built with the header that our own module is built
# with.
build_floor() {
    local headers
    # List only what this platform needs, because cargo would otherwise download the rest first.
    headers=$(cargo metadata --locked --format-version 1 --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" |
        grep -o '"manifest_path":"[^"]*/redis-module-[0-9][^"]*/Cargo.toml"' | sed 's/.*:"//; s,/Cargo.toml"$,,' | sed -n 1p)
    [ -r "$headers/src/include/redismodule.h" ] || die 'redismodule.h is not where the crate redis-module had it'
    RLOCK_FLOOR=$root/target/floor/libfloor.so
    mkdir -p "${RLOCK_FLOOR%/*}"
    cc -O2 -g -shared -fPIC -Wall -I "$headers/src/include" -o "$RLOCK_FLOOR" bench/floor/floor.c
    export RLOCK_FLOOR
}

compare() {
    local name code=0 status words
    # 10 000 connections, with both of their ends on this machine, if the system allows it.
    ulimit -n 10200 2>/dev/null || ulimit -n "$(ulimit -Hn)"
    for name in ${SERVERS:-default}; do
        status=0
        [ "$name" = default ] || scripts/server.sh "$name" || status=$?
        case $status in
            0) ;;
            77) continue ;; # the script said why
            *) code=1 && continue ;;
        esac
        use_server "$name"
        words=("$@")
        if [ "$1" = run ] && [ -n "${QUICK-}" ]; then
            words+=(quick)
        elif [ "$1" = run ]; then
            words+=(full)
            # The peers' clients use the default server.
            [ "$name" != default ] || words+=(with-peers)
        fi
        "$bench" "${words[@]}" || code=1
    done
    [ -n "${QUICK-}" ] || "$bench" report
    exit $code
}

wait_curve() {
    local code=0
    use_server default
    export PEER_SECONDS=${PEER_SECONDS:-${QUICK:+2}}
    export PEER_SECONDS=${PEER_SECONDS:-15}
    if [ -n "${QUICK-}${PEERS-}${LOADS-}" ]; then
        "$bench" arrivals && exec "$bench" cache
        exit 1
    fi
    "$bench" part arrivals || code=1
    "$bench" part cache || code=1
    "$bench" report
    python3 -B scripts/wait_curve.py
    exit $code
}

use_server() {
    export RLOCK_SERVER=$tools/servers/$1/redis-server
    export RLOCK_CLI=$tools/servers/$1/redis-cli
}

# Finds callgrind: the machine's own, or one fetched into .tools.
need_valgrind() {
    local own=$tools/valgrind-own
    ! command -v valgrind >/dev/null || return 0
    if ! [ -x "$own/usr/bin/valgrind" ]; then
        has_apt || skip 'valgrind is missing, and this system has no apt'
        lock_tools
        apt_open valgrind || skip "valgrind is missing: $(apt_reason)"
        say 'fetching valgrind (into .tools)'
        apt_unpack "$own" valgrind || skip "valgrind is missing: $(apt_reason)"
        apt_close
    fi
    export PATH=$own/usr/bin:$PATH VALGRIND_LIB=$own/usr/libexec/valgrind
}

skip() {
    say "SKIPPED bench: $*"
    say '0 passed, 0 failed, 1 skipped'
    exit 77
}

main "$@"
