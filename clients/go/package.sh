# shellcheck shell=bash
# Sourced by scripts/clients.sh.

package_tools() { go_here; }

package_build() {
    go_here
    cmp LICENSE-MIT clients/go/LICENSE-MIT
    cmp LICENSE-APACHE clients/go/LICENSE-APACHE
    cmp LICENSE-MIT clients/go/rlockotel/LICENSE-MIT
    cmp LICENSE-APACHE clients/go/rlockotel/LICENSE-APACHE
    cd clients/go
    go mod download || skip 'go: what it depends on could not be fetched'
    [ -z "$(gofmt -l .)" ]
    go vet ./...
    cd rlockotel
    go mod download || skip 'go: what OpenTelemetry needs could not be fetched'
    go vet ./...
    cd ..
    go build -o "$home/go/conformance" ./conformance
    say "the module $(go list -m), version $(rlock_version)"
}

go_here() {
    command -v go || skip 'no go'
    mkdir -p "$home/go"
    in_go_folders
    (cd clients/go && go list -m) || skip "$(cd clients/go && go list -m 2>&1 | tail -n 1)"
}

package_runners() { say "go=$home/go/conformance"; }

package_replay() {
    go_here
    cd clients/go && RLOCK_TRACES=$TRACES go test -count=1 -run TestTraces ./internal/machine
}

package_test() {
    go_here
    export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server} RLOCK_MODULE=${RLOCK_MODULE:-$(module)}
    go_tests clients/go 'go tests'
    go_tests clients/go/rlockotel 'go: OpenTelemetry'
    redsync_tests
}

# Runs redsync's own tests with RLOCK's locks, and the program of docs/coming-from/redlock.md that uses redsync. Its
# sources come from the Go module proxy, and are removed afterwards.
redsync_tests() {
    local version=v4.18.1 sources folder=$home/go/redsync
    if ! (cd clients/go && go mod download "github.com/go-redsync/redsync/v4@$version"); then
        say 'SKIPPED redsync: its sources could not be fetched'
        return
    fi
    sources=$(go env GOMODCACHE)/github.com/go-redsync/redsync/v4@$version
    rm -rf "$folder"
    mkdir -p "$folder/redis/goredis/v9"
    cp "$sources"/*.go "$folder/"
    cp "$sources/redis/redis.go" "$folder/redis/"
    cp "$sources/redis/goredis/v9/goredis.go" "$folder/redis/goredis/v9/"
    rm -f "$folder/redsync_test.go" "$folder/scripts_test.go" # they test its servers, and the digests of its scripts
    chmod -R u+w "$folder"
    cp clients/go/testdata/redsync/adapter_test.go.txt "$folder/adapter_test.go"
    cp clients/go/testdata/redsync/go.mod.txt "$folder/go.mod"
    sed -n '/^## redsync/,$p' docs/coming-from/redlock.md | sed -n '/^```text$/,/^```$/{/^```/!p}' >"$folder/page.txt"
    sed -e "/(the page)/r $folder/page.txt" -e '/(the page)/d' clients/go/testdata/redsync/page_test.go.txt >"$folder/page_test.go"
    if ! (cd "$folder" && go mod tidy -e && go mod download); then
        say 'SKIPPED redsync: what its tests depend on could not be fetched'
        return
    fi
    go_tests "$folder" "redsync's tests"
}

# go_tests FOLDER TITLE: prints a line for each test.
go_tests() {
    local line
    (cd "$1" && go test -count=1 -timeout 300s -v ./... 2>&1) | while IFS= read -r line; do
        case $line in
            '--- PASS: '*) say "ok $2: ${line#--- PASS: }" ;;
            '--- FAIL: '*) say "FAILED $2: ${line#--- FAIL: }" ;;
            '--- SKIP: '*) say "SKIPPED $2: ${line#--- SKIP: }" ;;
            '=== '* | 'redis: '*) ;;
            *) say "    $line" ;;
        esac
    done
}
