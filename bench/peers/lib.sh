# shellcheck shell=bash
# What the peers' setup.sh and run.sh share; sourced, not run.

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

# fetch COMMAND...: its output goes to a log; where it fails the peer is skipped, with the reason.
# What is built from it afterwards is ours, and no reason to skip.
fetch() {
    local log=$fetched/setup.log
    lock_tools
    mkdir -p "$fetched"
    "$@" >"$log" 2>&1 ||
        skip "not fetched: $(grep -m1 -iE 'error|fail' "$log" || tail -n 1 "$log") (${log#"$root"/})"
}

# This project's packages, as they are shipped.
packages=$tools/clients/tree/clients
build_packages() {
    "$root/scripts/clients.sh" build "$@" >&2 || die "the packages were not built: $*"
}

# --- measuring -----------------------------------------------------------------------------------

# pin CORE: this subshell and what it starts run on that core alone, where the machine has it.
# Servers on 0, clients on 1.
pin() { taskset -cp "$1" "$BASHPID" >/dev/null 2>&1 || true; }

code=0

# measure PEER WORK THREADS PROCESSES NOTE WORKER...: one line of JSON. A failure is said, and the
# others go on; $code has it.
measure() {
    local name=$1 work=$2 threads=$3 processes=$4 note=$5
    shift 5
    (pin 1 && exec python3 "$peers/measure.py" --peer "$name" --work "$work" --threads "$threads" \
        --processes "$processes" --warm-up "${warm_up:-0.5}" ${load:+--load "$load"} --note "$note" -- "$@") || code=1
}

# Is only the wait to be measured, of jobs that arrive at random (PEER_LOADS: percent of the time that the lock is held)?
# Then RLOCK is measured by this project's packages.
arrivals_only() { [ -n "${PEER_LOADS-}" ]; }

# all_work PEER NOTE WORKER...: what every exclusive lock is asked to do. Of jobs that arrive, 200 can wait or hold at a
# time, or $contenders.
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

# --- the JVM: per peer, the libraries of its pom.xml and the worker --------------------------------

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

# The JVM compiles while it warms up (seconds), on the clients' core too; with fewer calls, for longer.
jvm_warm_up=2
! arrivals_only || jvm_warm_up=6
java_worker=(java -Xms256m -Xmx256m -XX:+UseSerialGC
    -cp "$fetched/classes:$fetched/libraries/*" Worker)

# The version of a library: 4.7.0 of redisson-4.7.0.jar.
java_version() {
    (cd "$fetched/libraries" && printf '%s\n' "$1"-[0-9]*.jar) | sed "s/^$1-\(.*\)\.jar\$/\1/"
}

# --- the Go program: several peers use it ---------------------------------------------------------

go_worker=$tools/peers/go/worker

# Peers may want a newer Go than the one that is here.
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

# The version of a module that the worker was built with: 4.18.1 of v4.18.1.
go_version() {
    go version -m "$go_worker" |
        awk -v module="$1" '$1 == "dep" && $2 == module { sub(/^v/, "", $3); print $3 }'
}

# --- servers of the peers' own --------------------------------------------------------------------

free_port() {
    python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# serve COMMAND...: a server for the time of this script, with its files in $data, which goes too.
# The command ends in an exec, so that the signal reaches the server itself.
serve() {
    trap 'kill "$server" && wait "$server" || true; rm -rf "$data"' EXIT
    (pin 0 && "$@") >"$data/log" 2>&1 &
    server=$!
}

# until_ready COMMAND...: asks it until it says yes; a server that died, or is not there after a
# minute, ends the script.
until_ready() {
    local deadline=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ] ||
            die "$peer did not start: $(tail -n 5 "$data/log")"
        sleep 0.1
    done
}
