#!/usr/bin/env bash
# server.sh NAME: another server to test on, in .tools/servers/NAME: redis-server and redis-cli.
#
#   redis-7.0                               the default server where it is that one, else as packaged for Debian
#   redis-8.0   valkey-8.1   valkey-9.1     as packaged for newer Debians, with their own C library
#   libc                                    Redis 7.0 on the C library's malloc, for valgrind:
#                                           jemalloc would hide what the module does with memory
#   any name like redis-7.2 or valkey-9     from RLOCK_MORE_SERVERS, a folder with NAME/redis-server and
#                                           NAME/redis-cli in it, which come first; NAME/origin, if it is there,
#                                           is one line that says where they come from
#
# Where it cannot be had: a line `SKIPPED NAME: why`, and exit code 77.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/debian.sh"

main() {
    name=${1-}
    folder=$tools/servers/$name
    suite=
    case $name in
        redis-7.0) suite=bookworm package=redis ;;
        redis-8.0) suite=trixie package=redis ;;
        valkey-8.1) suite=trixie package=valkey ;;
        valkey-9.1) suite=sid package=valkey ;;
        libc) suite=bookworm package=redis ;;
        redis-[0-9]* | valkey-[0-9]*) package=${name%%-*} ;;
        *) die "usage: $0 NAME, which is like redis-7.2 or valkey-8.0, or libc" ;;
    esac
    if [ -n "${RLOCK_MORE_SERVERS-}" ] && [ -e "$RLOCK_MORE_SERVERS/$name/redis-server" ]; then
        take "$(cd "$RLOCK_MORE_SERVERS/$name" && pwd)"
        return
    elif [ "$name" = redis-7.0 ] && is_right "$tools/servers/default/redis-server"; then
        take "$tools/servers/default"
        return
    fi
    # Taken before, and no longer named.
    [ ! -e "$folder/taken" ] || rm -rf "$folder"
    if ! is_there; then
        [ -n "$suite" ] || skip 'no distribution is known here that has it'
        lock_tools
        is_there || fetch
    fi
    say "package of Debian $suite" >"$folder/origin"
}

fetch() {
    open_suite "$suite"
    if [ "$name" = libc ]; then
        build_with_libc
    else
        fetch_with_own_libc
    fi
    apt_close
    is_there || skip "it does not start: $("$folder/redis-server" --version 2>&1 | sed -n '$p')"
}

is_there() { [ -x "$folder/redis-cli" ] && is_right "$folder/redis-server"; }

# Is the program $1 the server of this name, in the version of this name? A suite moves on, and then has another one.
is_right() {
    local said
    said=$("$1" --version 2>/dev/null) || return 1
    right_version "$(server_version "$1")" || return 1
    case $package:$said in
        redis:Redis*) ;;
        valkey:Redis* | redis:*) return 1 ;;
        valkey:*) ;; # 7.2 calls itself just "Server"
    esac
}

# Does $1 carry the version in the name?
right_version() {
    case $name in
        libc) [[ $1 == 7.0.* ]] ;;
        *) [[ $1 == "${name#*-}".* ]] ;;
    esac
}

# Makes the two programs in the folder $1 those of this name.
take() {
    local program from=$1
    is_right "$from/redis-server" ||
        die "$name: $from/redis-server is another one: $("$from/redis-server" --version 2>&1 | sed -n 1p)"
    [ -x "$from/redis-cli" ] || die "$name: there is no $from/redis-cli"
    rm -rf "$folder"
    mkdir -p "$folder"
    for program in redis-server redis-cli; do
        wrap "$folder/$program" "$from/$program"
    done
    touch "$folder/taken"
    if [ -r "$from/origin" ]; then
        sed -n 1p "$from/origin" >"$folder/origin"
    elif [ "$from" != "$tools/servers/default" ]; then
        say 'given by path'
    elif [ -e "$from/of-system" ]; then
        say "found on $(system)"
    else
        say "package of $(system)"
    fi >>"$folder/origin"
}

# "Debian GNU/Linux 12 (bookworm)"
system() { (. /etc/os-release && say "${PRETTY_NAME:-this system}"); }

skip() {
    local image=$package:${name#*-}
    [ "$package" = redis ] || image=valkey/$image
    say "SKIPPED $name: $*"
    [ "$name" = libc ] || say "    to have it: put its redis-server and redis-cli into FOLDER/$name" \
        "(the official image $image has them in /usr/local/bin) and say RLOCK_MORE_SERVERS=FOLDER"
    exit 77
}

fetch_with_own_libc() {
    local version libraries loader program
    version=$(apt_version $package-server)
    right_version "$version" || skip "Debian $suite has ${version:-no} $package-server${version:+ instead}"
    say "fetching $package-server $version (Debian $suite, into .tools)"
    # With libgcc-s1: the module may want it, even where the server does not.
    # shellcheck disable=SC2046 # package names
    apt_unpack "$folder" $package-server $package-tools libgcc-s1 \
        $(apt_libraries $package-server $package-tools | grep -vxF libgcc-s1) || skip "$(apt_reason)"
    # Older packages have their C library in /lib, newer ones in /usr/lib.
    libraries=$(cd "$folder" && library_path lib usr/lib)
    loader=$(cd "$folder" && { compgen -G 'usr/lib/*/ld-linux*.so.[0-9]' || compgen -G 'lib/*/ld-linux*.so.[0-9]'; } |
        sed -n 1p || true)
    [ -n "$loader" ] || skip 'its C library has no loader where it is looked for'
    for program in server cli; do
        wrap "$folder/redis-$program" "usr/bin/$package-$program" "$libraries" "$loader"
    done
}

build_with_libc() {
    local work=$folder.build log=$folder.log archive
    rm -rf "$folder" "$work"
    mkdir -p "$work/src"
    (cd "$work" && apt_get source --download-only redis) >>"$apt_log" 2>&1 || skip "$(apt_reason)"
    archive=$(compgen -G "$work/redis_*.orig.tar.*" | grep -v '\.asc$') || skip 'its source package holds no sources'
    right_version "${archive##*redis_}" || skip "Debian $suite has other sources: ${archive##*/}"
    say "building ${archive##*/} with the C library's malloc (source of Debian $suite, into .tools)"
    tar xf "$archive" -C "$work/src" --strip-components=1
    # -O1 -g: what valgrind reports can be read. The sources stay for the same reason.
    make -C "$work/src/src" -j"$(nproc)" MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPTIMIZATION=-O1 \
        redis-server redis-cli >"$log" 2>&1 || skip "it does not build, see $log"
    rm -f "$work"/redis_*
    # No wrapper: valgrind is to see the server, not a shell.
    ln -s src/src/redis-server src/src/redis-cli "$work"
    mv "$work" "$folder"
}

main "$@"
