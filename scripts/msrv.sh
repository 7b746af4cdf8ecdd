#!/usr/bin/env bash
# Is the Rust version that Cargo.toml promises enough? The module is built with exactly that one (rustup fetches it), and
# the core's tests run. With versions as arguments, with those: `scripts/msrv.sh 1.85 1.88`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
[ $# -gt 0 ] || set -- "$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)"
scripts/setup.sh
. "$tools/env"
command -v rustup >/dev/null || { say 'SKIPPED msrv: no rustup to fetch an older toolchain' && exit 77; }
for version in "$@"; do
    rustup toolchain install "$version" --profile minimal >"$tools/rustup.log" 2>&1 ||
        { say "SKIPPED msrv: Rust $version could not be fetched" && exit 77; }
    export CARGO_TARGET_DIR=$tools/msrv/$version
    if cargo "+$version" build --release --locked -p rlock >"$tools/msrv-$version.log" 2>&1 &&
        cargo "+$version" build --release --locked -p rlock-top >>"$tools/msrv-$version.log" 2>&1 &&
        cargo "+$version" test --locked -p rlock-core --lib --test units --test grammar --test waiting >>"$tools/msrv-$version.log" 2>&1; then
        passed=$((passed + 1))
        say "Rust $version builds it, and the core's tests pass"
    else
        failed=$((failed + 1))
        say "Rust $version does not: $(grep -m 1 '^error' "$tools/msrv-$version.log" || tail -n 1 "$tools/msrv-$version.log")"
    fi
done
sum_up
