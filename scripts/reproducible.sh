#!/usr/bin/env bash
# Does the same commit give the same bytes in any folder? Two clones of HEAD, in folders of different names, each make
# the packages and the archives for the platforms named (all, if none); their checksums are compared.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/cross.sh"
cd "$root"
[ $# -gt 0 ] || set -- "${platforms[@]}"

scripts/setup.sh
count=0
work=$(mktemp -d "$tools/reproducible.XXXXXX")
trap 'rm -rf "$work"' EXIT
for clone in "$work/a" "$work/another-folder/with-a-longer-name"; do
    git clone --quiet --no-local "$root" "$clone"
    # What is fetched is fetched once: it is not what is compared.
    mkdir -p "$clone/.tools"
    for name in libclang servers rpm; do
        [ ! -e "$tools/$name" ] || ln -s "$tools/$name" "$clone/.tools/$name"
    done
    [ ! -e "$tools/zig/$zig_version" ] || { mkdir -p "$clone/.tools/zig" && ln -s "$tools/zig/$zig_version" "$clone/.tools/zig/"; }
    (unset LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS CARGO_TARGET_DIR && cd "$clone" && scripts/packages.sh && scripts/dist.sh "$@") >"$work/log" 2>&1 ||
        die "$(tail -n 5 "$work/log")"
    cp "$clone/target/dist/SHA256SUMS" "$work/sums-$((++count))"
done
cat "$work/sums-1"
if diff "$work/sums-1" "$work/sums-2"; then
    say "$(wc -l <"$work/sums-1") files, the same bytes in two folders"
else
    die 'the bytes differ'
fi
