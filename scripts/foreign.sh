#!/usr/bin/env bash
# foreign.sh PLATFORM: provides a server of that platform, on which the module of a release can run, in
# .tools/servers/PLATFORM:
#
#   linux-x86_64                         Redis 7.0, linked for the oldest supported glibc, on Debian 11's glibc
#   linux-aarch64                        Debian's arm64 redis-server, under qemu
#   linux-musl-x86_64                    Redis 7.0, linked to musl, on Debian's musl
#   linux-musl-aarch64                   the same for arm64, under qemu
#
# Debian has no package of Redis for musl, so zig builds Debian's source package. If a server cannot be provided, the
# script prints a line `SKIPPED PLATFORM: why`, and its exit code is 77.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/debian.sh"
. "$root/scripts/cross.sh"

main() {
    platform "${1-}"
    folder=$tools/servers/$platform
    ! is_there || return 0
    get_zig || skip "no zig, see $tools/zig.log"
    lock_tools
    ! is_there || return 0
    get_emulator
    rm -rf "$folder"
    case $platform in
        linux-aarch64) fetch_arm64 ;;
        linux-x86_64) get_libc bullseye libc6 && build ;;
        *) get_libc bookworm musl && build ;;
    esac
    is_there || skip "it does not start: $("$folder/redis-server" --version 2>&1 | sed -n '$p')"
}

is_there() { [[ $(server_version "$folder/redis-server") == 7.0.* ]]; }

skip() {
    say "SKIPPED $platform: $*"
    exit 77
}

# The name that Debian uses for the architecture.
debian_arch() {
    case $arch in
        x86_64) say amd64 ;;
        aarch64) say arm64 ;;
    esac
}

# Sets $emulator if this machine has another architecture: to the system's own emulator, or to one in .tools.
get_emulator() {
    emulator=
    [ "$(uname -m)" != "$arch" ] || return 0
    emulator=$(command -v "qemu-$arch-static" || command -v "qemu-$arch" || true)
    [ -z "$emulator" ] || return 0
    emulator=$tools/qemu/usr/bin/qemu-$arch-static
    [ ! -x "$emulator" ] || return 0
    open_suite bookworm
    say 'fetching qemu-user-static (Debian bookworm, into .tools)'
    apt_unpack "$tools/qemu" qemu-user-static || skip "no qemu: $(apt_reason)"
    apt_close
}

fetch_arm64() {
    open_suite bookworm arm64
    say "fetching redis-server $(apt_version redis-server) for arm64 (Debian bookworm, into .tools)"
    # shellcheck disable=SC2046 # package names
    apt_unpack "$folder" redis-server redis-tools libgcc-s1 \
        $(apt_libraries redis-server redis-tools | grep -vxF libgcc-s1) || skip "$(apt_reason)"
    apt_close
    wrap "$folder/redis-server" usr/bin/redis-server "$(cd "$folder" && library_path .)" \
        lib/ld-linux-aarch64.so.1 "$emulator"
}

# get_libc SUITE PACKAGE: fetches the C library, with its loader, that the server is to run on.
get_libc() {
    open_suite "$1" "$(debian_arch)"
    apt_unpack "$tools/libc-$platform" "$2" || skip "$(apt_reason)"
    apt_close
}

build() {
    local work=$folder.build log=$folder.log archive loader
    open_suite bookworm
    rm -rf "$work"
    mkdir -p "$work/src" "$folder"
    (cd "$work" && apt_get source --download-only redis) >>"$apt_log" 2>&1 || skip "$(apt_reason)"
    archive=$(compgen -G "$work/redis_*.orig.tar.*" | grep -v '\.asc$') || skip 'its source package holds no sources'
    say "building ${archive##*/} for $zig_target (source of Debian bookworm, into .tools)"
    tar xf "$archive" -C "$work/src" --strip-components=1
    write_tools
    # By default zig would link musl statically, and check for undefined behaviour. What is tested here is the module.
    make -C "$work/src/src" -j"${CARGO_BUILD_JOBS:-$(nproc)}" MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPTIMIZATION=-O2 \
        CC="$tools/cross/$platform/cc -dynamic -fno-sanitize=all" AR="$tools/cross/$platform/ar" \
        RANLIB="$tools/cross/$platform/ar s" redis-server >"$log" 2>&1 || skip "it does not build, see $log"
    mkdir -p "$folder/bin"
    cp "$work/src/src/redis-server" "$folder/bin/"
    rm -rf "$work" "$folder/libc"
    apt_close
    mv "$tools/libc-$platform" "$folder/libc"
    # With musl, the loader and the library are the same file.
    loader=$(cd "$folder" && { compgen -G 'libc/lib/*/ld-*.so.[0-9]' || compgen -G 'libc/lib/*/libc.so'; } | sed -n 1p)
    [ -n "$loader" ] || skip 'its C library has no loader where it is looked for'
    wrap "$folder/redis-server" bin/redis-server "$(cd "$folder" && library_path libc)" "$loader" "$emulator"
}

main "$@"
