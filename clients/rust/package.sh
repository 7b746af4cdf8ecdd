# shellcheck shell=bash
# Sourced by scripts/clients.sh.

package_build() {
    # Use the dependencies' versions in Cargo.lock, without looking for newer ones.
    build_tools
    cargo package --quiet --locked --allow-dirty --no-verify --list -p rlock-client | grep -x 'LICENSE-MIT'
    say "the crate rlock-client, version $(rlock_version)"
}

package_runners() {
    say "rust=$(tools_folder)/examples/conformance async"
    say "rust-sync=$(tools_folder)/examples/conformance sync"
}

package_replay() { RLOCK_TRACES=$TRACES cargo test --locked --profile tools -p rlock-client --lib trace; }

package_test() { cargo_tests rlock-client 'rust tests' opentelemetry,tls,testing; }

# cargo_tests PACKAGE TITLE [FEATURE]: prints a line for each test.
cargo_tests() {
    local line
    export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server} RLOCK_MODULE=${RLOCK_MODULE:-$(module)}
    cargo test --locked --no-fail-fast --profile tools -p "$1" ${3:+--features "$3"} 2>&1 | while IFS= read -r line; do
        case $line in
            'test '*' ... ok') line=${line#test } && say "ok $2: ${line% ... ok}" ;;
            'test '*' ... FAILED') line=${line#test } && say "FAILED $2: ${line% ... FAILED}" ;;
            'error: test failed'*) say "    $line" ;;
            error*) say "FAILED $2: $line" ;;
            *) say "    $line" ;;
        esac
    done
}
