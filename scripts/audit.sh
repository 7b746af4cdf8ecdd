#!/usr/bin/env bash
# Checks our dependencies with cargo-deny. Licences, sources and bans (deny.toml) need no network. Known vulnerabilities
# come from the RustSec database; if it cannot be reached, a line `SKIPPED advisories: why` says so.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

version=0.20.2
deny=$tools/cargo-deny/bin/cargo-deny
if command -v cargo-deny >/dev/null; then
    deny=cargo-deny
elif [ "$("$deny" --version 2>/dev/null)" != "cargo-deny $version" ]; then
    say "fetching cargo-deny $version (crates.io, into .tools); it takes some minutes to build"
    # Build it unoptimised: this takes a third of the time, and the program is fast enough.
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$tools/cargo-deny.build cargo install cargo-deny --quiet --locked --debug \
        --version "$version" --root "$tools/cargo-deny" || die "cargo-deny $version could not be built"
    rm -rf "$tools/cargo-deny.build"
fi

step "$deny" --all-features check licenses bans sources && passed=$((passed + 1)) || true
log=$tools/advisories.log
if "$deny" fetch db >"$log" 2>&1; then
    step "$deny" --all-features check advisories && passed=$((passed + 1)) || true
else
    skipped=$((skipped + 1))
    say "SKIPPED advisories: the database could not be fetched, see $log"
fi
sum_up with-skipped
