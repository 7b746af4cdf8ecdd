#!/usr/bin/env bash
# run.sh CHECKOUT: Redisson's own lock tests, from a checkout of Redisson, over this package. RLOCK_SERVER and
# RLOCK_MODULE are the paths of a server and of the module. The last line is the sum; each failure is compared with
# expected.txt, which docs/coming-from/redisson.md explains.
set -euo pipefail
checkout=$(cd "$1" && pwd)
cd "$(dirname "$0")"
maven=(mvn --batch-mode ${M2:+-Dmaven.repo.local="$M2"})
theirs=target/theirs/org/redisson
tests=(RedissonLockTest RedissonFairLockTest RedissonReadWriteLockTest)

folder=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait; rm -rf "$folder"' EXIT

server() {
    local port=$1
    shift
    mkdir "$folder/$port"
    (cd "$folder/$port" && exec "$RLOCK_SERVER" --port "$port" --bind 127.0.0.1 --save '' \
        --notify-keyspace-events KEd --loadmodule "$RLOCK_MODULE" "$@" >log) &
    pids+=($!)
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do kill -0 $!; sleep 0.1; done
}

mkdir -p "$theirs"
for name in "${tests[@]}" BaseConcurrentTest RedissonRunnable; do
    cp "$checkout/redisson/src/test/java/org/redisson/$name.java" "$theirs/"
done
export PORT=$((20000 + RANDOM % 10000)) CLUSTER_PORT=$((30000 + RANDOM % 2000))
server "$PORT"
server "$CLUSTER_PORT" --cluster-enabled yes
exec 3<>"/dev/tcp/127.0.0.1/$CLUSTER_PORT"
printf 'CLUSTER ADDSLOTSRANGE 0 16383\r\n' >&3
read -r reply <&3
exec 3>&-
[[ $reply = +OK* ]]

"${maven[@]}" -Dmaven.test.failure.ignore ${ONLY:+-Dtest="$ONLY"} test >target/log.txt 2>&1 || { tail -n 30 target/log.txt; exit 1; }
# Name and outcome of each, from the reports.
awk '
    /<testcase / { name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name)
        class = $0; sub(/.*classname="org\.redisson\./, "", class); sub(/".*/, "", class); total++ }
    /<(failure|error)[ >]/ { print class "." name; failed++ }
    END { print total - failed " of " total > "target/sum.txt" }
' target/surefire-reports/TEST-*.xml | sed 's/\[[0-9]*\]//g; s/()//' | sort -u >target/failed.txt
unexpected=$(comm -23 target/failed.txt <(sed 's/ .*//' expected.txt | sort))
if [ -n "$unexpected" ]; then
    printf 'not expected:\n%s\n' "$unexpected"
    printf '%s passed\n' "$(cat target/sum.txt)"
    exit 1
fi
printf '%s passed, as expected\n' "$(cat target/sum.txt)"
