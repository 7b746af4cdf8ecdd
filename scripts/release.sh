#!/usr/bin/env bash
# Builds the module for every platform with zig, checks it with readelf, and runs each one: the smoke tests of the
# server tests on a server of its platform, with qemu for arm64. target/dist gets librlock-VERSION-OS-ARCH.so for each,
# and SHA256SUMS. The command-line tool for each machine is beside them: rlock-cli-VERSION-ARCH. With names of platforms
# as arguments, only these are built. `release.sh build` builds and checks them, but runs nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/cross.sh"
cd "$root"

# A few tests of everything: each kind of command, blocked clients, timers, saving and replication. The test that limits
# a delay to milliseconds is left out. Under an emulator, which is ten times as slow, fewer tests run.
smoke=(acquire:: release:: renew:: read_write:: blocking:: tickets:: sessions:: persistence:: replication:: transactions::
    --skip a_wait_ends_when_its_time_is_over)
emulated=(acquire:: release:: renew:: read_write:: transactions:: blocking::a_hundred blocking::readers_that sessions::the_tie
    persistence::nothing_is_forgotten_by replication::a_full_sync_brings replication::every_change)

main() {
    local name is_run=yes
    if [ "${1-}" = build ]; then
        is_run=
        shift
    fi
    [ $# -gt 0 ] || set -- "${platforms[@]}"
    scripts/setup.sh
    . "$tools/env"
    dist=$(dist_folder)
    version=$(rlock_version)
    mkdir -p "$dist"
    for name in "$@"; do
        build "$name"
    done
    for name in $(printf '%s\n' "${@##*-}" | sort -u); do
        platform "linux-$name"
        command_line
    done
    sums
    [ -n "$is_run" ] || exit 0
    for name in "$@"; do
        try "$name"
    done
    sum_up with-skipped
}

build() {
    platform "$1"
    say "== $platform"
    cross_build "$platform" rlock || die "$platform: no module"
    module=$dist/librlock-$version-$platform.so
    install -m 755 "$(built librlock.so)" "$module"
    touch --no-dereference --date="@$(source_epoch)" "$module"
    scripts/check-module.sh "$platform" "$module"
}

sums() { (cd "$dist" && sha256sum -- librlock-"$version"-*.so | tee SHA256SUMS); }

# try PLATFORM: runs the tests, and adds them to the sum.
try() {
    local code=0 log=$tools/release-$1.log before=$failed p=$passed
    scripts/foreign.sh "$1" || code=$?
    case $code in
        0) ;;
        77) # the script said why
            skipped=$((skipped + 1))
            return
            ;;
        *)
            failed=$((failed + 1))
            say "$1: FAILED, there is no server of its kind"
            return
            ;;
    esac
    export RLOCK_MODULE=$dist/librlock-$version-$1.so
    export RLOCK_SERVER=$tools/servers/$1/redis-server RLOCK_CLI=$tools/servers/default/redis-cli
    local tests=("${smoke[@]}")
    ! grep -q qemu "$RLOCK_SERVER" || tests=("${emulated[@]}")
    run_tests -p rlock-tests --test server -- "${tests[@]}" --test-threads 2 >"$log"
    [ "$failed" = "$before" ] || cat "$log"
    say "$1 ($(server_kind)): $((passed - p)) passed, $((failed - before)) failed"
}

# The server that the tests ran on: version, C library, emulator.
server_kind() {
    local libc
    libc=$(cd "${RLOCK_SERVER%/*}" && compgen -G 'libc/lib/*/ld-2.*.so' | sed 's,.*/ld-,glibc ,; s,\.so$,,') ||
        libc=$([ ! -e "${RLOCK_SERVER%/*}/libc" ] && echo "Debian 12's glibc" || echo musl)
    say "Redis $(server_version "$RLOCK_SERVER") on $libc$(grep -q qemu "$RLOCK_SERVER" && echo ', under qemu')"
}

main "$@"
