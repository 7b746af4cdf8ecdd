#!/usr/bin/env bash
# Tests the sets of images/compose.yaml and images/kubernetes-ha.yaml with real servers and Sentinels, on each of
# SERVERS. Everything dies, and starts again in every order. An operator promotes servers and changes passwords. Disks
# lose files, every pod is replaced, a disk is full, and memory is full. Needs root and iproute2.
#
#   orders.sh            all: every cell of the table (about an hour with JOBS=4), SEEDS random sequences (50)
#   orders.sh short      one order for each history, at most ten minutes
#   SERVERS="redis-8.6 valkey-9.1"       on these instead of the default server
#   WORDS="first is stale,10 s"          only the cells of the table whose names contain each of these
#   JOBS=4                               this many sets at the same time (2)
#   RLOCK_MODULE=file                    uses that module instead of building one
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

main() {
    [ "$(id -u)" = 0 ] || die 'the members have a network of their own, which needs root'
    command -v ip >/dev/null || die 'no ip to make networks with: apt install iproute2'
    prepare_runs
    need_yaml
    work=$(mktemp -d "$tools/orders.XXXXXX")
    trap 'rm -rf --one-file-system "$work"' EXIT
    on_servers "${SERVERS:-default}" "all_${1:-long}"
}

need_yaml() {
    python=python3
    "$python" -c 'import yaml' 2>/dev/null && return
    python=$tools/yaml/bin/python
    [ -x "$python" ] || { python3 -m venv "$tools/yaml" && "$python" -m pip install --quiet "$(grep PyYAML images/lint-requirements.txt)"; }
}

# run SCRIPT [KIND] FILE [WORD...]
run() {
    local script=$1 kind=() folder
    shift
    case $script in orders.py) kind=("$1") && shift ;; esac
    folder=$(mktemp -d "$work/run.XXXXXX")
    say "-- $script ${kind[*]-} $*"
    "$python" -B "images/$script" "${kind[@]}" "$(dirname "$RLOCK_SERVER")" "$RLOCK_MODULE" "images/$1" "$folder" "${@:2}" || code=1
}

all_short() {
    local code=0
    run update.py kubernetes-ha.yaml
    run orders.py table compose.yaml 'nothing is lost' 'sentinels after 3 s'
    run repairs.py compose.yaml promote_beside_a_primary lost_files
    return $code
}

all_long() {
    local code=0 file words=()
    IFS=, read -ra words <<<"${WORDS-}"
    for file in compose.yaml kubernetes-ha.yaml; do
        run orders.py table $file "${words[@]}"
        run orders.py random $file "${SEEDS:-50}"
        run repairs.py $file
        run disk.py $file
    done
    run update.py kubernetes-ha.yaml
    for file in kubernetes.yaml kubernetes-ha.yaml; do
        run memory.py $file
    done
    return $code
}

main "$@"
