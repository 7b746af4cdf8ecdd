#!/usr/bin/env bash
# Redisson's locks, and RLOCK by Jedis beside them, in the same JVM settings.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

warm_up=2 # seconds: the JVM compiles meanwhile, on the same core
worker=(java -Xms256m -Xmx256m -XX:+UseSerialGC
    -cp "$fetched/target/classes:$fetched/target/libraries/*" Worker)
version=$(cd "$fetched/target/libraries" && echo redisson-[0-9]*.jar)
redisson=${version%.jar}
redisson=${redisson/-/ }
jedis=$(cd "$fetched/target/libraries" && echo jedis-[0-9]*.jar)
jedis=${jedis%.jar}
jedis=${jedis/-/ }

watchdog='one client per process, its defaults; lock() with the watchdog of 30 s'
blocking='a connection per thread, BLOCK 0'

all_work "$redisson RLock" "$watchdog" "${worker[@]}" RLock
all_work "$redisson FairLock" "$watchdog" "${worker[@]}" FairLock
all_work "$redisson ReadWriteLock write" "$watchdog" "${worker[@]}" write
all_work "RLOCK by $jedis" "$blocking, lease 30 s" "${worker[@]}" RLOCK
all_work "RLOCK SESSION by $jedis" "$blocking, lease 30 s renewed by the server" "${worker[@]}" SESSION

for threads in 1 10 100; do
    measure "$redisson ReadWriteLock read" shared $threads 1 "$watchdog" "${worker[@]}" read
    measure "RLOCK READ by $jedis" shared $threads 1 "$blocking, lease 30 s" "${worker[@]}" READ
done
exit $code
