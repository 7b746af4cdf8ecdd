#!/usr/bin/env bash
# Checks that the same commit gives the same bytes in any folder. Packages and archives are made here and in a clone of
# HEAD in another folder, for the named platforms (all, if none is named), and their checksums are compared.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/cross.sh"
cd "$root"
[ $# -gt 0 ] || set -- "${platforms[@]}"

[ -z "$(git status --porcelain)" ] || die 'what is here is not what is committed: commit it first'
scripts/setup.sh
elsewhere=$(mktemp -d "${TMPDIR:-/tmp}/rlock-reproducible.XXXXXX")
trap 'rm -rf "$elsewhere"' EXIT
clone=$elsewhere/a-folder-of/another-name
git clone --quiet --no-local "$root" "$clone"
# Each file is downloaded only once; the download is not part of the comparison.
mkdir -p "$clone/.tools/zig"
for name in libclang servers rpm "zig/$zig_version"; do
    [ ! -e "$tools/$name" ] || ln -s "$tools/$name" "$clone/.tools/$name"
done

# make_all FOLDER: makes everything that a release publishes. The output ends with the checksums.
make_all() (
    cd "$1"
    unset LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS CARGO_TARGET_DIR
    rm -rf target/dist
    scripts/packages.sh
    scripts/dist.sh "${@:2}"
)

for folder in "$root" "$clone"; do
    make_all "$folder" "$@" >"$elsewhere/log" 2>&1 || die "$folder: $(tail -n 5 "$elsewhere/log")"
done
cat target/dist/SHA256SUMS
diff target/dist/SHA256SUMS "$clone/target/dist/SHA256SUMS" || die 'the bytes differ'
say "$(wc -l <target/dist/SHA256SUMS) files, the same bytes in two folders"
