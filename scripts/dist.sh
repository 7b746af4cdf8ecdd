#!/usr/bin/env bash
# target/dist/rlock-VERSION-SYSTEM.tar.gz and its .sha256: the module, redis.conf, README, CHANGELOG, licences, and the
# checksums of all. The same commit, toolchain and folder give the same bytes: names in order, owners and times fixed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

scripts/setup.sh
. "$tools/env"
cargo build --release --locked
version=$(cargo pkgid -p rlock | sed 's/.*[#@]//')
name=rlock-$version-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
dist=${CARGO_TARGET_DIR:-target}/dist
rm -rf "${dist:?}/$name"
mkdir -p "$dist/$name"
# Without the debugger's lines, which are most of it; the names stay, for a crash report of the server.
strip --strip-debug -o "$dist/$name/librlock.so" "$(module)"
cp -L redis.conf README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$dist/$name/"
chmod 644 "$dist/$name"/*
chmod 755 "$dist/$name/librlock.so"
(cd "$dist/$name" && sha256sum -- * >SHA256SUMS)
tar --create --directory "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --mtime="@$(git log -1 --format=%ct)" "$name" | gzip -9 --no-name >"$dist/$name.tar.gz"
(cd "$dist" && sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256")
