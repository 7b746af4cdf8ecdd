#!/usr/bin/env bash
# Measures Redisson's locks, and RLOCK through Jedis in a JVM with the same settings.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

warm_up=$jvm_warm_up
redisson="redisson $(java_version redisson)"
jedis="jedis $(java_version jedis)"
watchdog='one client per process, its defaults; lock() with the watchdog of 30 s'
blocking='a connection per thread, BLOCK 0'

all_work "$redisson RLock" "$watchdog" "${java_worker[@]}" RLock
all_work "$redisson FairLock" "$watchdog" "${java_worker[@]}" FairLock
if arrivals_only; then
    all_work 'RLOCK, package for Java' "$jedis; its defaults" "${java_worker[@]}" package
    exit $code
fi
all_work "$redisson ReadWriteLock write" "$watchdog" "${java_worker[@]}" write
all_work "RLOCK by $jedis" "$blocking, lease 30 s" "${java_worker[@]}" RLOCK
all_work "RLOCK SESSION by $jedis" "$blocking, lease 30 s renewed by the server" "${java_worker[@]}" SESSION

for threads in 1 10 100; do
    measure "$redisson ReadWriteLock read" shared $threads 1 "$watchdog" "${java_worker[@]}" read
    measure "RLOCK READ by $jedis" shared $threads 1 "$blocking, lease 30 s" "${java_worker[@]}" READ
done
exit $code
