#!/usr/bin/env bash
# Runs the examples, each with the tools of its language, on a private server with the module. Prints a line for each
# example, and the sum. With names as arguments, only these run. Their dependencies are fetched once, into
# .tools/examples. If a toolchain is missing or cannot fetch, the line says SKIPPED and why.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
[ $# -gt 0 ] || set -- python node node-nest go java redisson-service rust glide php alerts pages
home=$tools/examples

main() {
    scripts/setup.sh
    . "$tools/env"
    cargo build --quiet --release --locked
    mkdir -p "$home"
    private_server "$home/server"
    local name
    for name in "$@"; do
        example "$name"
    done
    sum_up with-skipped
}

# Runs the example $1 and prints one line for it. Its function runs with -e in its own shell, so that a failure ends
# only that shell.
example() {
    local name=$1 log=$home/$1.log code=0 start=$SECONDS
    set +e
    (
        set -e
        "try_${name//-/_}"
    ) >"$log" 2>&1
    code=$?
    set -e
    case $code in
        0)
            passed=$((passed + 1))
            say "ok $name ($((SECONDS - start)) s)"
            ;;
        77)
            skipped=$((skipped + 1))
            say "SKIPPED $name: $(tail -n 1 "$log")"
            ;;
        *)
            failed=$((failed + 1))
            say "FAILED $name:"
            cat "$log"
            ;;
    esac
}

skip() {
    say "$*"
    exit 77
}

# fetched NAME FILE COMMAND...: runs COMMAND in .tools/examples/NAME, unless it has already run for the same FILE.
fetched() {
    local folder=$home/$1 file=$2
    shift 2
    mkdir -p "$folder"
    cmp -s "$file" "$folder/fetched" && return
    (cd "$folder" && "$@") || skip "$1: what it depends on could not be fetched"
    cp "$file" "$folder/fetched"
}

# copied NAME: copies the example's sources to a place where its tools may leave their files.
copied() {
    mkdir -p "$home/$1"
    rm -rf "$home/$1/src" # a previous copy may have files that are gone from the sources
    cp -Rp "examples/$1/." "$home/$1/"
}

python_is_there() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && python3 -c 'import venv, ensurepip'; }

# Builds the package that an example imports, as `make clients` does, and prints the name of its file.
package() {
    local said=$home/$1.package line
    scripts/clients.sh build "$1" >"$said" 2>&1 || true
    line=$(grep -E '^(ok|SKIPPED|FAILED) ' "$said" | sed -n 1p) || true
    case $line in
        ok*) say "${line##* }" ;;
        SKIPPED*) skip "${line#*: }" ;;
        *)
            cat "$said"
            die 'the package does not build'
            ;;
    esac
}

try_python() {
    python_is_there || skip 'no Python 3.11 with venv'
    package python # builds and installs it
    run "$tools/clients/python/bin/python" -B examples/python/lock.py
}

# Clients for which there is no package: docs/wrappers.md.
try_glide() {
    local venv=$home/glide
    python_is_there || skip 'no Python 3.11 with venv'
    if ! "$venv/bin/python" -c 'import glide' 2>/dev/null; then
        python3 -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet valkey-glide==2.6.0 || skip 'valkey-glide could not be fetched'
    fi
    rm -rf "$home/cluster" # in a previous server's files, the slots would already be assigned
    private_server "$home/cluster" --cluster-enabled yes
    "$tools/servers/default/redis-cli" -p "$PORT" cluster addslotsrange 0 16383
    until "$tools/servers/default/redis-cli" -p "$PORT" cluster info | grep -q 'cluster_state:ok'; do sleep 0.1; done
    run "$venv/bin/python" -B examples/python/glide_lock.py | tee "$home/glide.said"
    grep -q 'granted one after the other: 200' "$home/glide.said"
}

try_php() {
    command -v php || skip 'no php'
    php -m | grep -qx redis || skip 'php has no redis extension'
    run php examples/php/lock.php | tee "$home/php.said"
    grep -q 'a second owner gets it: false' "$home/php.said"
}

try_node() {
    node_is_there node
    run node lock.mjs
}

# A NestJS application.
try_node_nest() {
    node_is_there node-nest
    node_modules/.bin/tsc
    run node check.mjs
}

# node_is_there NAME: copies that example, goes to the copy, and installs its dependencies.
node_is_there() {
    command -v node && command -v npm || skip 'no node with npm'
    [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || skip 'no node 20'
    local package
    package=$(package node) || {
        local code=$?
        say "$package"
        return $code
    }
    copied "$1"
    cd "$home/$1"
    fetched_in_place "$package" npm install --no-audit --no-fund --no-save "$package"
}

# Works like `fetched`, in the current folder.
fetched_in_place() {
    local file=$1
    shift
    cmp -s "$file" fetched && return
    "$@" || skip 'what it depends on could not be fetched'
    cp "$file" fetched
}

try_go() {
    command -v go || skip 'no go'
    mkdir -p "$home/go"
    in_go_folders
    cd examples/go
    [ "$(go list -m 2>&1)" = example ] || skip "$(go list -m 2>&1 | tail -n 1)"
    go mod download || skip 'what it depends on could not be fetched'
    go vet .
    go build -o "$home/go/example" .
    run "$home/go/example" | tee "$home/go/said"
    grep -q 'counted: 10' "$home/go/said"
    grep -q 'a reader shares: true  a writer enters: false' "$home/go/said"
    grep -q 'told: rlock: the hold was lost  may write: false' "$home/go/said"
}

try_java() {
    package java # builds it and installs it into .tools/m2
    copied java
    rm -rf "$home"/java{,/spring}/target # Maven does not see when a class that these classes use has changed
    maven "$home/java" compile dependency:copy-dependencies
    cd "$home/java"
    run java -cp 'target/classes:target/dependency/*' Example
    maven "$home/java/spring" compile dependency:copy-dependencies
    cd spring
    run java -cp 'target/classes:target/dependency/*' shop.Shop | tee "$home/java.said"
    grep -q 'report: 100 shipped' "$home/java.said"
    grep -q 'writes it: null' "$home/java.said"
    grep -q 'rlock.wait: 102' "$home/java.said"
}

# A service that was written for Redisson. Its tests run before and after the change that the page shows.
try_redisson_service() {
    local folder=$home/java/redisson-service
    command -v patch || skip 'no patch'
    package java # builds it and installs it into .tools/m2
    copied java/redisson-service
    rm -rf "$folder/target" # after a previous run, it has the classes of the changed service
    maven "$folder" test
    shown_diff 1 docs/coming-from/redisson.md | patch --directory="$folder" --strip=1
    grep -q RlockRedisson.create "$folder/src/main/java/shop/Shop.java"
    maven "$folder" test
    shown_diff 2 docs/coming-from/redisson.md | patch --directory="$folder" --strip=1
    grep -q RlockRedisson.plain "$folder/src/main/java/shop/Shop.java"
    cp "$folder/src/starter/java/shop/TemplateTest.java" "$folder/src/test/java/shop/"
    maven "$folder" test -Dtest=TemplateTest,StockTest#whoFindsItLockedSellsNothing
}

# shown_diff N PAGE: prints the N-th diff that the page shows.
shown_diff() { awk -v n="$1" '/^```/ { shows = /^```diff$/ && ++at == n; next } shows' "$2"; }

# maven FOLDER ARGUMENT...: runs Maven. If it cannot fetch what is missing, the example is skipped.
maven() {
    local folder=$1 log=$home/maven.log
    shift
    (cd "$folder" && mvn --quiet --batch-mode -Dmaven.repo.local="$tools/m2" "$@") >"$log" 2>&1 && return
    cat "$log"
    ! grep -qE 'Could not transfer|Could not find artifact|Unknown host|Cannot access' "$log" ||
        skip 'what it depends on could not be fetched'
    exit 1
}

try_rust() {
    build_tools
    run "$(tools_folder)/rlock-example" | tee "$home/rust.said"
    grep -q 'counted: 10' "$home/rust.said"
    grep -q 'a reader shares: true  a writer enters: false' "$home/rust.said"
    grep -q 'may write: false  released: Err(Lost)' "$home/rust.said"
}

try_alerts() {
    local own=$home/prometheus/usr/bin
    if promtool --version >"$home/promtool.version" 2>&1 && prometheus --version >>"$home/promtool.version" 2>&1; then
        own=
    elif [ ! -x "$own/prometheus" ]; then
        has_apt || skip 'no Prometheus, and no apt to fetch it'
        apt_open host || true
        apt_unpack "$home/prometheus" prometheus || skip "no Prometheus: $(apt_reason)"
        apt_close
    fi
    python_is_there || skip 'no Python 3.11 with venv'
    (
        cd examples/prometheus
        "${own:+$own/}promtool" check rules alerts.yml
        # The queries of the dashboard, written as rules.
        python3 -B dashboard_rules.py >"$home/dashboard.yml"
        "${own:+$own/}promtool" check rules "$home/dashboard.yml"
        "${own:+$own/}promtool" test rules alerts-test.yml
        "${own:+$own/}promtool" check config --syntax-only prometheus.yml
    )
    build_tools
    export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server} RLOCK_MODULE=${RLOCK_MODULE:-$(module)}
    export RLOCK=${RLOCK:-$(tools_folder)/rlock}
    timeout 400 python3 -B examples/prometheus/live.py "${own:+$own/}prometheus"
}

# The shell sessions that docs shows.
try_pages() {
    local pages
    python_is_there || skip 'no Python 3.11 with venv'
    openssl version || skip 'no openssl'
    export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server} RLOCK_CLI=${RLOCK_CLI:-$tools/servers/default/redis-cli}
    # Do not use grep -q, which may end first: then the pipe would fail.
    "$RLOCK_CLI" --help 2>&1 | grep -- --tls >/dev/null || skip 'a redis-cli without TLS'
    [ -n "${RLOCK-}" ] || build_tools
    export RLOCK_MODULE=${RLOCK_MODULE:-$(module)} RLOCK=${RLOCK:-$(tools_folder)/rlock}
    mapfile -t pages < <(grep -l '^```shell$' docs/*.md)
    run python3 -B scripts/shells.py "${pages[@]}"
}

# A program that hangs counts as failed.
run() { timeout 120 "$@"; }

main "$@"
