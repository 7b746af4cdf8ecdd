# shellcheck shell=bash
# The platforms that a release is built for, and how it is built. This file is sourced after lib.sh, not run. The C
# compiler and linker for all platforms is zig, which has the headers of each C library and knows which glibc version
# introduced which symbol. zig comes from PyPI, into .tools.

platforms=(linux-x86_64 linux-aarch64 linux-musl-x86_64 linux-musl-aarch64)
# RHEL 8, Debian 11 and Ubuntu 20.04 have this version or a newer one.
oldest_glibc=2.28
zig_version=0.17.1

# platform NAME: sets $platform, $arch, $libc, $triple and $zig_target.
platform() {
    platform=$1 arch=${1##*-}
    case $1 in
        linux-musl-x86_64 | linux-musl-aarch64) libc=musl zig_target=$arch-linux-musl ;;
        linux-x86_64 | linux-aarch64) libc=gnu zig_target=$arch-linux-gnu.$oldest_glibc ;;
        *) die "there is no platform $1, only ${platforms[*]}" ;;
    esac
    triple=$arch-unknown-linux-$libc
}

# The version of the packages, of the file names, and of the module itself.
rlock_version() { (cd "$root" && cargo pkgid --locked -p rlock | sed 's/.*[#@]//'); }

# The time that packages and archives carry is that of the last commit, so that it does not depend on when they are
# built.
source_epoch() { say "${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}"; }

zig() { "$tools/zig/$zig_version/ziglang/zig" "$@"; }

# Provides zig, or prints a line on stderr that says why this is impossible.
get_zig() {
    [ -x "$tools/zig/$zig_version/ziglang/zig" ] || fetch_zig
}

# This is a subshell, so that the lock ends with it: scripts that the caller starts later take the lock themselves.
fetch_zig() (
    folder=$tools/zig/$zig_version log=$tools/zig.log
    lock_tools
    [ ! -x "$folder/ziglang/zig" ] || exit 0
    say "fetching zig $zig_version (the wheel ziglang from PyPI, into .tools)" >&2
    mkdir -p "$folder.part"
    python3 -m pip install --quiet --retries 2 --no-deps --only-binary :all: --target "$folder.part" \
        "ziglang==$zig_version" >"$log" 2>&1 ||
        { say "zig could not be fetched: $(tail -n 1 "$log")" >&2 && exit 1; }
    mv "$folder.part" "$folder"
)

# Provides Rust's own libraries for $triple, or prints a line on stderr that says why this is impossible.
get_rust_target() {
    local log=$tools/rustup.log
    [ ! -d "$(rustc --print target-libdir --target "$triple")" ] || return 0
    say "fetching Rust's libraries for $triple (rustup)" >&2
    rustup target add "$triple" >"$log" 2>&1 ||
        { say "Rust's libraries for $triple could not be fetched: $(tail -n 1 "$log")" >&2 && return 1; }
}

# write_tools: writes cc and ar for $platform into .tools/cross/$platform.
write_tools() {
    local folder=$tools/cross/$platform
    mkdir -p "$folder"
    cat >"$folder/cc.part" <<END
#!/usr/bin/env bash
# rustc and its cc pass a --target that zig does not know. zig links its own libunwind into the module, in place
# of libgcc_s, which an Alpine system lacks.
export ZIG_GLOBAL_CACHE_DIR='$tools/zig/cache' ZIG_LOCAL_CACHE_DIR='$tools/zig/cache'
words=()
for word in "\$@"; do
    case \$word in
        --target=*) ;;
        -lgcc_s) words+=(-lunwind) ;;
        *) words+=("\$word") ;;
    esac
done
exec '$tools/zig/$zig_version/ziglang/zig' cc -target $zig_target "\${words[@]}"
END
    cat >"$folder/ar.part" <<END
#!/bin/sh
exec '$tools/zig/$zig_version/ziglang/zig' ar "\$@"
END
    chmod +x "$folder/cc.part" "$folder/ar.part"
    replace_changed "$folder/cc"
    replace_changed "$folder/ar"
}

# write_wrapper: writes a wrapper around rustc, which is the same for all platforms. RUSTFLAGS would not do, because
# cargo derives symbol names from them, and they would contain the name of this folder. One file serves all platforms,
# because cargo rebuilds everything when the wrapper changes.
write_wrapper() {
    cat >"$tools/cross/rustc.part" <<END
#!/bin/sh
# Keep the names of the folders here out of the binaries, so that other folders give the same bytes.
exec "\$@" --remap-path-prefix='$root=rlock' --remap-path-prefix='${CARGO_HOME:-$HOME/.cargo}/registry/src=crates' \\
    --remap-path-prefix='$(rustc --print sysroot)/lib/rustlib/src/rust=rust'
END
    chmod +x "$tools/cross/rustc.part"
    replace_changed "$tools/cross/rustc"
}

# Renames FILE.part to FILE. If both are equal, FILE keeps its modification time, by which cargo decides what to
# rebuild.
replace_changed() { if cmp -s "$1.part" "$1"; then rm "$1.part"; else mv "$1.part" "$1"; fi; }

# cross_build PLATFORM PACKAGE: builds PACKAGE for PLATFORM, into target/TRIPLE/shipped. If this is impossible, stderr
# says why.
cross_build() {
    local here
    get_zig || return 1
    here=$(rustc -vV | sed -n 's/^host: //p')
    # Build scripts and macros run on this machine. They always use the same linker, because cargo would otherwise
    # rebuild them for each platform.
    case $here in
        x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) platform "linux-${here%%-*}" ;;
        x86_64-unknown-linux-musl | aarch64-unknown-linux-musl) platform "linux-musl-${here%%-*}" ;;
        *) die "a release is built on Linux, not on $here" ;;
    esac
    write_tools
    local host_linker=$tools/cross/$platform/cc
    here=${here//-/_}
    platform "$1"
    get_rust_target || return 1
    write_tools
    write_wrapper
    (
        export "CARGO_TARGET_${here^^}_LINKER=$host_linker"
        cd "$root"
        cross_environment
        # By default, Rust links musl statically, but a module is a shared library. A static program starts with zig's
        # start files; Rust has its own, and a program must not have both.
        if [ -n "${is_static-}" ]; then
            export "CARGO_TARGET_${upper}_RUSTFLAGS=-Clink-self-contained=no"
        elif [ "$libc" = musl ]; then
            export "CARGO_TARGET_${upper}_RUSTFLAGS=-Ctarget-feature=-crt-static"
        fi
        cargo build --profile shipped --locked --target "$triple" --package "$2"
    )
}

# The same for a program that needs no C library, for the machine of PLATFORM. Afterwards $platform is what it was
# before.
cross_build_static() {
    local before=$platform
    is_static=yes cross_build "linux-musl-$arch" "$2" || return 1
    platform "$before"
}

# command_line: builds `rlock` for $arch as $dist/rlock-cli-VERSION-ARCH. It is linked to no library, so one build per
# machine works with any C library.
command_line() {
    local headers program=$dist/rlock-cli-$(rlock_version)-$arch
    cross_build_static "$platform" rlock-cli || die "$platform: no command line"
    install -m 755 "$(built_static rlock)" "$program"
    touch --no-dereference --date="@$(source_epoch)" "$program"
    headers=$(LC_ALL=C readelf --wide --program-headers --dynamic "$program")
    ! grep -q 'INTERP\|(NEEDED)' <<<"$headers" || die "$platform: rlock needs libraries"
    ! grep -qaF "$root" "$program" || die "$platform: rlock names the folder where it was built"
    say "$platform: rlock, $(stat -c %s "$program") bytes, needs no library"
}

# Sets the variables that cargo, rustc and the crates' build scripts use for $platform.
cross_environment() {
    local headers=$tools/zig/$zig_version/ziglang/lib/libc/include lower=${triple//-/_}
    upper=${lower^^}
    export "CC_$lower=$tools/cross/$platform/cc" "AR_$lower=$tools/cross/$platform/ar" "CFLAGS_$lower=-g0"
    export "CARGO_TARGET_${upper}_LINKER=$tools/cross/$platform/cc" RUSTC_WRAPPER="$tools/cross/rustc"
    # Have bindgen read the headers of the platform's C library, not of this machine's.
    export "BINDGEN_EXTRA_CLANG_ARGS_$lower=$BINDGEN_EXTRA_CLANG_ARGS -nostdlibinc \
        -isystem '$headers/$arch-linux-$libc' -isystem '$headers/${arch/x86_64/x86}-linux-$libc' \
        -isystem '$headers/generic-${libc/gnu/glibc}' \
        -isystem '$headers/${arch/x86_64/x86}-linux-any' -isystem '$headers/any-linux-any'"
}

# Where cross_build puts its results for $platform, and where cross_build_static puts them.
built() { say "$(target_folder)/$triple/shipped/$1"; }
built_static() { say "$(target_folder)/$arch-unknown-linux-musl/shipped/$1"; }

target_folder() {
    local folder=${CARGO_TARGET_DIR:-target}
    case $folder in /*) ;; *) folder=$root/$folder ;; esac
    say "$folder"
}

# The folder of everything that a release publishes.
dist_folder() { say "$(target_folder)/dist"; }
