# shellcheck shell=bash
# Sourced by scripts/clients.sh.

java=$home/tree/clients/java
java_classes="$java/tests/target/classes:$java/tests/target/dependency/*"

# The versions of Spring Boot that the starter is tested with, each with spring-integration-redis.
boots='3.5.16/6.5.5 4.0.9/7.0.7'

# Maven keeps what it fetches in this checkout.
maven() { mvn --batch-mode -Dmaven.repo.local="$tools/m2" "$@"; }

package_tools() { command -v java && command -v mvn || skip 'no java with mvn'; }

package_build() {
    local log=$home/java-build.txt
    grep -q "<version>$(rlock_version)</version>" clients/java/pom.xml ||
        die "clients/java has another version than the module, $(rlock_version)"
    copied java
    cd "$java"
    if ! maven --quiet install -DskipTests >"$log" 2>&1; then
        cat "$log"
        ! grep -qE 'Could not transfer|Could not find artifact|Unknown host|Cannot access' "$log" ||
            skip 'java: what it depends on could not be fetched'
        exit 1
    fi
    say "$java/core/target/rlock-core-$(rlock_version).jar"
}

package_runners() {
    local client
    for client in jedis lettuce; do
        say "java-$client=java -Xmx128m -XX:+UseSerialGC -cp $java_classes rlock.conformance.Runner $client"
    done
}

package_services() {
    local folder=$java/rolling
    maven --quiet -f "$folder" compile dependency:copy-dependencies >"$home/java-rolling.txt" 2>&1 || {
        cat "$home/java-rolling.txt" >&2
        return 1
    }
    say "spring-boot=java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp $folder/target/classes:$folder/target/dependency/* rlock.rolling.Service"
}

package_replay() {
    cd "$java" && RLOCK_TRACES=$TRACES maven --quiet -pl tests -Dtest=TraceTest surefire:test
}

# The tests start their own servers, to kill them.
package_test() {
    export RLOCK_SERVER=$tools/servers/default/redis-server RLOCK_MODULE RLOCK_ROOT=$root
    cd "$java"
    run mvn --batch-mode -Dmaven.repo.local="$tools/m2" -Dmaven.javadoc.skip -Dmaven.source.skip verify >"$home/java-test.txt" 2>&1 || true
    suites java "$home/java-test.txt" Trace Seat Driver Readme Lock Tell Several Once Any Drain Testing Redisson Answers Servers Async Listener Telemetry Breakages Silence KilledServer OlderClients Permanent Address Exits \
        SpringRegistry ShedLockOverJedis ShedLockOverLettuce
    local boot
    for boot in $boots; do
        run mvn --batch-mode -Dmaven.repo.local="$tools/m2" -f spring-boot-tests -Dboot.version="${boot%/*}" \
            -Dintegration.redis.version="${boot#*/}" verify >"$home/java-boot.txt" 2>&1 || true
        suites "java on Spring Boot ${boot%/*}" "$home/java-boot.txt" Starter Locked Refusals Moved Shutdown LostCommit
    done
    rolling java
    foreign_tests redisson "Redisson's lock tests" "${REDISSON_SOURCES-}"
    foreign_tests spring "Spring Integration's registry tests" "${SPRING_INTEGRATION_SOURCES-}"
}

# suites TITLE LOG NAME...: prints a line for each test class NAMETest, from Maven's output.
suites() {
    local title=$1 log=$2 suite counts
    shift 2
    for suite in "$@"; do
        counts=$(sed -n "s/.*Tests run: \(.*\), Time elapsed.* in rlock\..*${suite}Test$/\1/p" "$log")
        case $counts in
            *'Failures: 0, Errors: 0,'*) say "ok $title $suite: $counts" ;;
            *)
                say "FAILED $title $suite: ${counts:-not run}"
                grep -E 'ERROR|FAIL' "$log" | sed 's/^/    /' | head -n 40
                ;;
        esac
        case $counts in
            *'Skipped: 0'* | '') ;;
            *) say "SKIPPED $title $suite: ${counts##* } of them, for what the server lacks (LIMIT)" ;;
        esac
    done
}

# foreign_tests FOLDER NAME CHECKOUT: runs tests that their project does not publish as an artifact, from a checkout of
# it.
foreign_tests() {
    local folder=clients/java/foreign/$1 name=$2 checkout=$3 sum
    if [ -z "$checkout" ]; then
        say "SKIPPED $name: no artifact has them; clients/java/foreign/README.md says how to run them from a checkout"
        return
    fi
    sum=$(M2=$tools/m2 "$root/$folder/run.sh" "$checkout" 2>&1 | tee "$home/java-$1.txt" | tail -n 1) || true
    case $sum in
        *' passed, as expected') say "ok $name: $sum" ;;
        *) say "FAILED $name: $sum" ;;
    esac
}
