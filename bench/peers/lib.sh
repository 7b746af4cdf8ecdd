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
fetch() {
    mkdir -p "$fetched"
    "$@" >"$fetched/setup.log" 2>&1 ||
        skip "could not be fetched or built: $(sed -nE '/[Ee]rr|[Ff]ail/ { p; q }' "$fetched/setup.log") (see ${fetched#"$root"/}/setup.log)"
}

# --- measuring -----------------------------------------------------------------------------------

# pinned CORE COMMAND...: on that core alone, where the machine has it. Servers on 0, clients on 1.
pinned() {
    local core=$1
    shift
    if taskset -c "$core" true 2>/dev/null; then
        taskset -c "$core" "$@"
    else
        "$@"
    fi
}

code=0

# measure PEER WORK THREADS PROCESSES NOTE WORKER...: one line of JSON. A failure is said, and the
# others go on; $code has it.
measure() {
    local name=$1 work=$2 threads=$3 processes=$4 note=$5
    shift 5
    pinned 1 python3 "$peers/measure.py" --peer "$name" --work "$work" --threads "$threads" \
        --processes "$processes" --warm-up "${warm_up:-0.5}" --note "$note" -- "$@" || code=1
}

# all_work PEER NOTE WORKER...: what every exclusive lock is asked to do.
all_work() {
    local name=$1 note=$2
    shift 2
    measure "$name" free 1 1 "$note" "$@"
    measure "$name" contended 10 1 "$note" "$@"
    measure "$name" contended 100 1 "$note" "$@"
    measure "$name" contended 1 4 "$note" "$@"
    measure "$name" hand-off 2 1 "$note" "$@"
}
