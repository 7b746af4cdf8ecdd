#!/usr/bin/env bash
# run.sh CHECKOUT: Redisson's own lock tests, from a checkout of Redisson: with Redisson itself, and with
# rlock-redisson, for which one line of them changes. RLOCK_SERVER and RLOCK_MODULE are the paths of a server and of the
# module. Prints a line for each class, and finally the sum; each failure with rlock-redisson is compared with
# expected.txt, which docs/coming-from/redisson.md explains. CLASSES="RedissonLockTest …" chooses some of them.
set -euo pipefail
checkout=$(cd "$1" && pwd)
cd "$(dirname "$0")"
. ../server.sh
classes=${CLASSES:-RedissonLockTest RedissonFairLockTest RedissonReadWriteLockTest RedissonFencedLockTest RedissonMultiLockTest
    RedissonFasterMultiLockTest RedissonSpinLockTest RedissonNonReentrantLockTest RedissonNonReentrantFairLockTest
    RedissonLockExpirationRenewalTest RedissonPermitExpirableSemaphoreTest}

# servers: starts a single one at $PORT, and a Cluster with one node at $CLUSTER_PORT.
servers() {
    local reply
    # A Cluster's bus uses its port + 10000, which must not be in the range of outgoing connections.
    export PORT=$((30000 + RANDOM % 2000)) CLUSTER_PORT=$((10000 + RANDOM % 10000))
    server "$PORT" --notify-keyspace-events KEA
    server "$CLUSTER_PORT" --notify-keyspace-events KEA --cluster-enabled yes --cluster-announce-ip 127.0.0.1
    exec 3<>"/dev/tcp/127.0.0.1/$CLUSTER_PORT"
    printf 'CLUSTER ADDSLOTSRANGE 0 16383\r\n' >&3
    read -r reply <&3
    exec 3>&-
    [[ $reply = +OK* ]]
}

# tests NAME CREATE: runs them in target/NAME, where CREATE makes their clients.
tests() {
    local target=target/$1 name
    rm -rf "$target"
    mkdir -p "$target/theirs"
    for name in $classes BaseConcurrentTest RedissonRunnable; do
        cp "$checkout/redisson/src/test/java/org/redisson/$name.java" "$target/theirs/"
    done
    cp src/*.java "$target/theirs/"
    # Thread.threadId() and sleep(Duration) came with Java 19.
    sed -i "s/Redisson\.create(/$2(/; s/currentThread()\.threadId()/currentThread().getId()/
        s/Thread\.sleep(\(Duration\.of[A-Za-z]*([0-9]*)\))/Thread.sleep(\1.toMillis())/" "$target"/theirs/*.java
    mvn --batch-mode ${M2:+-Dmaven.repo.local="$M2"} -DbuildTo="$target" -Dmaven.test.failure.ignore test >"$target.txt" 2>&1 || {
        tail -n 30 "$target.txt"
        return 1
    }
    # Prints class, name and outcome of each test, from the reports.
    awk '
        function value(field,   of) { of = $0; sub(".* " field "=\"", "", of); sub(/".*/, "", of); return of }
        /<testcase / { name = value("name"); sub(/[(\[].*/, "", name); class = value("classname"); sub(/.*\./, "", class)
            test = class " " name; if (!(test in all)) all[test] = "passed" }
        /<(failure|error)[ >]/ { all[test] = "FAILED" }
        END { for (test in all) print test, all[test] }
    ' "$target"/surefire-reports/TEST-*.xml | sort >"$target/results.txt"
}

servers
tests redisson Redisson.create &
baseline=$!
servers
tests rlock rlock.redisson.RlockRedisson.create
wait "$baseline"

for name in $classes; do
    for of in redisson rlock; do
        eval "$of=$(grep -c "^$name .* passed$" "target/$of/results.txt" || true)"
    done
    printf '%s: Redisson %s, rlock-redisson %s of %s\n' "$name" "$redisson" "$rlock" "$(grep -c "^$name " target/rlock/results.txt)"
done
sum="Redisson $(grep -c ' passed$' target/redisson/results.txt), rlock-redisson $(grep -c ' passed$' target/rlock/results.txt)"
sum+=" of $(grep -c . target/rlock/results.txt)"
unexpected=$(comm -23 <(sed -n 's/^\(.*\) \(.*\) FAILED$/\1.\2/p' target/rlock/results.txt | sort) <(sed 's/ .*//' expected.txt | sort))
if [ -n "$unexpected" ]; then
    printf 'not expected:\n%s\n' "$unexpected"
    printf '%s passed\n' "$sum"
    exit 1
fi
printf '%s passed, as expected\n' "$sum"
