#!/usr/bin/env bash
# Measures redis-py's Lock, and RLOCK through the same client for comparison. Contenders are processes, because threads
# of one interpreter would wait for each other.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

python=$fetched/venv/bin/python
redis_py="redis-py $("$python" -c 'import redis; print(redis.__version__)')"

work() {
    local name=$1 note=$2 lock=$3
    set -- "$python" "$here/worker.py" "$lock"
    if arrivals_only; then
        all_work "$name" "$note" "$@"
        return
    fi
    measure "$name" free 1 1 "$note" "$@"
    measure "$name" contended 1 4 "$note" "$@"
    measure "$name" contended 1 10 "$note" "$@"
    measure "$name" hand-off 2 1 "$note" "$@"
}

work "$redis_py Lock" 'timeout 30 s; blocking, sleep 0.1 s: its defaults' Lock
if arrivals_only; then
    work 'RLOCK, package for Python' "$redis_py; its defaults" package
    exit $code
fi
work "RLOCK by $redis_py" 'a connection per contender, BLOCK 0, lease 30 s' RLOCK
exit $code
