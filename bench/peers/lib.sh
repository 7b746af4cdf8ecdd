# shellcheck shell=bash
# Functions that the peers' setup.sh and run.sh share. This file is sourced, not run.

peers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$peers/../../scripts/lib.sh"

peer=$(basename "$(cd "$(dirname "$0")" && pwd)")
here=$peers/$peer
fetched=$tools/peers/$peer

# --- setup ---------------------------------------------------------------------------------------

skip() {
    say "SKIPPED $peer: $*"
    exit 77
}

need() { command -v "$1" >/dev/null || skip "$1 is not installed"; }

# fetch COMMAND...: runs COMMAND, with its output in a log. If it fails, the peer is skipped, and the reason is printed.
# What is built afterwards from the fetched files is our own work: a failure there is no reason to skip.
fetch() {
    local log=$fetched/setup.log
    lock_tools
    mkdir -p "$fetched"
    "$@" >"$log" 2>&1 ||
        skip "not fetched: $(grep -m1 -iE 'error|fail' "$log" || tail -n 1 "$log") (${log#"$root"/})"
}

# This project's packages, as users get them.
packages=$tools/clients/tree/clients
build_packages() {
    "$root/scripts/clients.sh" build "$@" >&2 || die "the packages were not built: $*"
}

# --- measuring -----------------------------------------------------------------------------------

# pin CORE: this subshell and its children run on that core only, if the machine has it. Servers use core 0, clients
# core 1.
pin() { taskset -cp "$1" "$BASHPID" >/dev/null 2>&1 || true; }

code=0

# measure PEER WORK THREADS PROCESSES NOTE WORKER...: prints one line of JSON. A failure is printed and sets $code, and
# the other measurements continue.
measure() {
    local name=$1 work=$2 threads=$3 processes=$4 note=$5
    shift 5
    (pin 1 && exec python3 "$peers/measure.py" --peer "$name" --work "$work" --threads "$threads" \
        --processes "$processes" --warm-up "${warm_up:-0.5}" ${load:+--load "$load"} --note "$note" -- "$@") || code=1
}

# Whether to measure only how long jobs wait that arrive at random times. PEER_LOADS lists the loads, in percent of the
# time that the lock is held. RLOCK is then measured through this project's packages.
arrivals_only() { [ -n "${PEER_LOADS-}" ]; }

# all_work PEER NOTE WORKER...: the work that every exclusive lock is measured with. Of the jobs that arrive, up to
# $contenders (200 by default) can wait or hold at the same time.
all_work() {
    local name=$1 note=$2 load
    shift 2
    if arrivals_only; then
        for load in $PEER_LOADS; do
            measure "$name" arrivals "${contenders:-200}" 1 "$note" "$@"
        done
        return
    fi
    measure "$name" free 1 1 "$note" "$@"
    measure "$name" contended 10 1 "$note" "$@"
    measure "$name" contended 100 1 "$note" "$@"
    measure "$name" contended 1 4 "$note" "$@"
    measure "$name" hand-off 2 1 "$note" "$@"
}

# --- the JVM: for each peer, the libraries of its pom.xml and the worker -------------------------

build_java_worker() {
    need javac
    need mvn
    [ "$peer" != java ] || build_packages java
    fetch mvn -B -ntp -f "$here/pom.xml" -Dmaven.repo.local="$fetched/repository" \
        dependency:copy-dependencies -DoutputDirectory="$fetched/libraries"
    [ "$peer" != java ] || cp "$packages"/java/core/target/rlock-core-[0-9]*[0-9].jar "$packages"/java/jedis/target/rlock-jedis-[0-9]*[0-9].jar "$fetched/libraries"
    javac --release 17 -d "$fetched/classes" -cp "$fetched/libraries/*" \
        "$peers/java/Worker.java" "$here/Handles.java"
}

# The JVM compiles while it warms up (this many seconds), on the clients' core too. The fewer calls there are, the
# longer it compiles.
jvm_warm_up=2
! arrivals_only || jvm_warm_up=6
java_worker=(java -Xms256m -Xmx256m -XX:+UseSerialGC
    -cp "$fetched/classes:$fetched/libraries/*" Worker)

# The version of a library: 4.7.0 if the file is redisson-4.7.0.jar.
java_version() {
    (cd "$fetched/libraries" && printf '%s\n' "$1"-[0-9]*.jar) | sed "s/^$1-\(.*\)\.jar\$/\1/"
}

# --- the Go program: several peers use it --------------------------------------------------------

go_worker=$tools/peers/go/worker

# A peer may need a newer Go than the installed one.
in_go() {
    local folder=$1
    shift
    (in_go_folders && cd "$folder" && GOTOOLCHAIN=auto go "$@")
}

build_go_worker() {
    need go
    fetch in_go "$peers/go" mod download
    in_go "$peers/go" build -o "$go_worker" .
}

# The version of a module that the worker was built with: 4.18.1 if it is v4.18.1.
go_version() {
    go version -m "$go_worker" |
        awk -v module="$1" '$1 == "dep" && $2 == module { sub(/^v/, "", $3); print $3 }'
}

# --- the peers' own servers ----------------------------------------------------------------------

free_port() {
    python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# serve COMMAND...: starts a server that runs until this script ends. Its files are in $data, which is removed with it.
# The command ends in an exec, so that the signal reaches the server itself.
serve() {
    trap 'kill "$server" && wait "$server" || true; rm -rf "$data"' EXIT
    (pin 0 && "$@") >"$data/log" 2>&1 &
    server=$!
}

# until_ready COMMAND...: runs COMMAND until it succeeds. The script ends if the server died, or is not ready after a
# minute.
until_ready() {
    local deadline=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ] ||
            die "$peer did not start: $(tail -n 5 "$data/log")"
        sleep 0.1
    done
}
