#!/usr/bin/env bash
# Checks that the Rust version that Cargo.toml promises is enough. The module and the command-line tool are built with
# exactly this version (fetched by rustup), the module serves a lock, and the tool shows who holds it. Other versions
# can be given as arguments: `scripts/msrv.sh 1.88 1.90`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
[ $# -gt 0 ] || set -- "$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)"
scripts/setup.sh
. "$tools/env"
command -v rustup >/dev/null || { say 'SKIPPED msrv: no rustup to fetch an older toolchain' && exit 77; }

# Writes the token of a lock and the name of its holder to the log.
serves() (
    module() { say "$CARGO_TARGET_DIR/debug/librlock.so"; }
    private_server "$tools/msrv/server" >>"$tools/msrv-$version.log" 2>&1
    "$tools/servers/default/redis-cli" -e -p "$PORT" rlock.acquire order:42 worker-1 >>"$tools/msrv-$version.log" 2>&1 &&
        "$CARGO_TARGET_DIR/debug/rlock" who order:42 --url "redis://127.0.0.1:$PORT" >>"$tools/msrv-$version.log" 2>&1 &&
        tail -n 5 "$tools/msrv-$version.log" | grep -q worker-1
)

for version in "$@"; do
    rustup toolchain install "$version" --profile minimal >"$tools/rustup.log" 2>&1 ||
        { say "SKIPPED msrv: Rust $version could not be fetched" && exit 77; }
    export CARGO_TARGET_DIR=$tools/msrv/$version
    if cargo "+$version" build --locked -p rlock >"$tools/msrv-$version.log" 2>&1 &&
        cargo "+$version" build --locked -p rlock-cli >>"$tools/msrv-$version.log" 2>&1 && serves; then
        passed=$((passed + 1))
        say "Rust $version builds the module, which serves a lock, and the command line, which sees who holds it"
    else
        failed=$((failed + 1))
        say "Rust $version does not: $(grep -m 1 '^error' "$tools/msrv-$version.log" || tail -n 1 "$tools/msrv-$version.log")"
    fi
done
sum_up
