#!/usr/bin/env bash
# Builds target/dist/rlock-VERSION-PLATFORM.tar.gz for every platform (or for those named), and SHA256SUMS of everything
# that a release publishes. An archive contains the module, the command-line tool `rlock`, settings, README and docs
# with everything that these pages link to, bills of materials, and checksums. The same commit and toolchain give the
# same bytes in any folder; `make reproducible` checks this. The archives contain committed files, not those that lie in
# the folder.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/cross.sh"
cd "$root"

main() {
    [ $# -gt 0 ] || set -- "${platforms[@]}"
    scripts/release.sh build "$@"
    . "$tools/env"
    dist=$(dist_folder)
    version=$(rlock_version)
    local name
    for name in "$@"; do
        archive "$name"
    done
    (
        cd "$dist"
        shopt -s nullglob # there may be no packages
        sha256sum -- *.so *.tar.gz *.cdx.json *.deb *.rpm | tee SHA256SUMS
    )
}

archive() {
    local name
    platform "$1"
    name=rlock-$version-$platform
    rm -rf "${dist:?}/$name"
    mkdir -p "$dist/$name"
    git archive HEAD -- $(python3 scripts/pages.py closure README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE redis.conf \
        packaging/rlock.conf packaging/rlock.1 packaging/rlock.7 examples docs images) | tar -x -C "$dist/$name"
    install -m 755 "$dist/librlock-$version-$platform.so" "$dist/$name/librlock.so"
    materials rlock "$triple" >"$dist/$name.cdx.json"
    cp "$dist/$name.cdx.json" "$dist/$name/sbom.cdx.json"
    program "$dist/$name"
    python3 scripts/pages.py check "$dist/$name"
    (cd "$dist/$name" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum -- >SHA256SUMS)
    tar --create --directory "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=gnu \
        --mtime="@$(source_epoch)" "$name" | gzip -9 --no-name >"$dist/$name.tar.gz"
    rm -rf "${dist:?}/$name"
}

# Puts the command-line tool into the folder $1.
program() {
    install -m 755 "$dist/rlock-cli-$version-$arch" "$1/rlock"
    materials rlock-cli "$arch-unknown-linux-musl" musl-of-zig >"$1/sbom-rlock.cdx.json"
}

# materials PACKAGE TRIPLE [ALSO...]: lists what is linked into PACKAGE for TRIPLE, and what zig adds to it.
materials() {
    cargo metadata --locked --format-version 1 --filter-platform "$2" |
        python3 scripts/sbom.py "$1" "$2" "$(rustc --version | cut -d' ' -f2)" "$zig_version" "${@:3}"
}

main "$@"
