#!/usr/bin/env bash
# run.sh CHECKOUT: Spring Integration's own registry tests, from a checkout of it: with its own registry, and over this
# package. RLOCK_SERVER and RLOCK_MODULE are the paths of a server and of the module. The last line is the sum; each
# failure over this package is compared with expected.txt, which docs/coming-from/spring.md explains.
set -euo pipefail
checkout=$(cd "$1" && pwd)
cd "$(dirname "$0")"
. ../server.sh
maven=(mvn --batch-mode ${M2:+-Dmaven.repo.local="$M2"})

util=org/springframework/integration/redis/util

# tests NAME REGISTRY: runs them in target/NAME, on a server of their own, with the registry in this folder.
tests() {
    local target=target/$1
    mkdir -p "$target/theirs/$util"
    cp "$checkout/spring-integration-redis/src/test/java/$util/RedisLockRegistryTests.java" "$target/theirs/$util/"
    export PORT=$((20000 + RANDOM % 10000))
    server "$PORT" --notify-keyspace-events KEd
    "${maven[@]}" -DbuildTo="$target" -Dregistry="$2" -Dmaven.test.failure.ignore ${ONLY:+-Dtest="$ONLY"} test >"$target.txt" 2>&1 || {
        tail -n 30 "$target.txt"
        return 1
    }
    # Prints name and outcome of each test, from the reports.
    awk -v sum="$target/sum.txt" -v failures="$target/failed.txt" '
        function value(field,   of) { of = $0; sub(".* " field "=\"", "", of); sub(/".*/, "", of); sub(/[(\[].*/, "", of); return of }
        /<testcase / { class = value("classname"); sub(/.*\./, "", class); name = value("name"); total++ }
        /<(failure|error)[ >]/ { print class "." name > failures; failed++ }
        END { print total - failed > sum; print total > sum ".all" }
    ' "$target"/surefire-reports/TEST-*.xml
}

rm -rf target
mkdir -p target/spring
cp -r src/main/java target/spring/registry
cp "$checkout/spring-integration-redis/src/main/java/$util/RedisLockRegistry.java" "target/spring/registry/$util/"
tests spring target/spring/registry
tests rlock src/main/java
touch target/rlock/failed.txt
sum="Spring $(cat target/spring/sum.txt), rlock-spring-integration $(cat target/rlock/sum.txt) of $(cat target/rlock/sum.txt.all)"
unexpected=$(comm -23 <(sort -u target/rlock/failed.txt) <(sed 's/ .*//' expected.txt | sort))
if [ -n "$unexpected" ]; then
    printf 'not expected:\n%s\n' "$unexpected"
    printf '%s passed\n' "$sum"
    exit 1
fi
printf '%s passed, as expected\n' "$sum"
