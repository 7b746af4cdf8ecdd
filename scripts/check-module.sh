#!/usr/bin/env bash
# check-module.sh PLATFORM FILE: checks that the module needs only what every system of that platform has. readelf shows
# its machine, the libraries and symbols that it needs, the symbol that it exports, its page size, and which parts are
# executable. One line lists what it needs; the script ends at the first thing that is wrong.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/cross.sh"

[ $# = 2 ] || die "usage: $0 PLATFORM FILE"
platform "$1"
file=$2

wrong() { die "$platform: $file $*"; }

elf() { LC_ALL=C readelf --wide "$@" "$file"; }

# --- for this machine, with any page size (64 KiB on arm64 of RHEL 8) ---
machine=$(elf --file-header | sed -n 's/^ *Machine: *//p')
case $arch:$machine in
    x86_64:*X86-64 | aarch64:AArch64) ;;
    *) wrong "is for $machine" ;;
esac
least=$([ "$arch" = aarch64 ] && echo $((0x10000)) || echo $((0x1000)))
for align in $(elf --program-headers | awk '$1 == "LOAD" { print $NF }'); do
    ((align >= least)) || wrong "is laid out for pages of $align bytes"
done
elf --program-headers | grep -q ' GNU_STACK .* RW  ' || wrong 'wants a stack that can be executed'
elf --program-headers | grep -q ' GNU_RELRO ' || wrong 'leaves its relocations writable'

# --- the libraries: the C library, and nothing that a small system may lack ---
dynamic=$(elf --dynamic)
libraries=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' <<<"$dynamic")
for library in $libraries; do
    case $libc:$library in
        gnu:libc.so.6 | gnu:libpthread.so.0 | gnu:libdl.so.2 | gnu:libm.so.6 | gnu:ld-linux-*) ;;
        musl:libc.so) ;;
        *) wrong "needs $library" ;;
    esac
done
[ -n "$libraries" ] || wrong 'is linked to no C library'
! grep -q 'TEXTREL\|STATIC_TLS\|RPATH\|RUNPATH' <<<"$dynamic" || wrong 'cannot be loaded everywhere: TEXTREL, STATIC_TLS or RPATH'

# --- the symbols: those that it exports, and which library has those that it needs ---
symbols=$(elf --dyn-syms | awk '$7 != "Ndx" && NF >= 8 { print $7, $5, $8 }')
offered=$(awk '$1 != "UND" { print $3 }' <<<"$symbols")
[ "$offered" = RedisModule_OnLoad ] || wrong "offers other symbols than RedisModule_OnLoad: ${offered//$'\n'/ }"
# A weak symbol may be missing: the code checks for it before use.
needed=$(awk '$1 == "UND" && $2 == "GLOBAL" { print $3 }' <<<"$symbols")
newest=
if [ "$libc" = gnu ]; then
    unversioned=$(grep -v '@GLIBC_' <<<"$needed" || true)
    [ -z "$unversioned" ] || wrong "needs symbols that no C library has: ${unversioned//$'\n'/ }"
    newest=$(elf --version-info | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
    [ "$(printf '%s\n' "$newest" "$oldest_glibc" | sort -V | tail -n 1)" = "$oldest_glibc" ] ||
        wrong "needs glibc $newest"
    hard=$(sed -n 's/.*@GLIBC_//p' <<<"$needed" | sort -uV | tail -n 1)
    needs="glibc $newest (without its weak symbols $hard)"
else
    get_zig
    missing=$(comm -23 <(sort -u <<<"$needed") \
        <(sed -nE 's/^(\.globl|\.weak|WEAK[A-Z0-9]*) ([A-Za-z0-9_]+)$/\2/p' \
            "$tools/zig/$zig_version/ziglang/lib/libc/musl/libc.S" | sort -u))
    [ -z "$missing" ] || wrong "needs symbols that musl lacks: ${missing//$'\n'/ }"
    needs='musl'
fi
! grep -qaF "$root" "$file" || wrong "names the folder where it was built"
say "$platform: $(stat -c %s "$file") bytes, needs $needs;" \
    "$(wc -l <<<"$needed") symbols of ${libraries//$'\n'/, }; offers $offered"
