# shellcheck shell=bash
# Functions that the other scripts share. This file is sourced, not run. Everything that is fetched goes to .tools in
# this checkout: no root, no system packages and no services are needed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/.tools

# rustup adds cargo to the PATH of new shells only, and this one may be older.
if ! command -v cargo >/dev/null && [ -x "${HOME:-}/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH
fi

say() { printf '%s\n' "$*"; }
die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# The version of a server: 7.0.15 from "Redis server v=7.0.15 sha=…" or "Valkey server v=8.1.1 sha=…".
server_version() { "$1" --version 2>/dev/null | sed -n 's/.* v=\([0-9][0-9.]*\).*/\1/p'; }

# Whether version $1 is at least major version $2.
at_least() {
    local major=${1%%.*}
    [ -n "$major" ] && [ "$major" -ge "$2" ]
}

# --- long runs on several servers ----------------------------------------------------------------

# Sets up, passes $SEED on to the tests, and builds the module unless $RLOCK_MODULE names one.
prepare_runs() {
    if [ -n "${SEED-}" ]; then export RLOCK_SEED=$SEED; fi
    scripts/setup.sh
    . "$tools/env"
    if [ -z "${RLOCK_MODULE-}" ]; then
        cargo build --release --locked
        RLOCK_MODULE=$(module)
    fi
    export RLOCK_MODULE
}

# on_servers NAMES COMMAND...: runs COMMAND for each of these servers, with $RLOCK_SERVER and $RLOCK_CLI. Fails if it
# failed for one of them. A server that cannot be provided here (77) is skipped, and its script says so.
on_servers() {
    local name code=0 names
    read -ra names <<<"$1"
    shift
    for name in "${names[@]}"; do
        [ "$name" = default ] || scripts/server.sh "$name" || {
            [ $? = 77 ] || code=1
            continue
        }
        export RLOCK_SERVER=$tools/servers/$name/redis-server RLOCK_CLI=$tools/servers/$name/redis-cli
        say "== $name ($(server_version "$RLOCK_SERVER"))"
        "$@" || code=1
    done
    return $code
}

# Only one setup runs at a time, because two would write the same files. The lock ends with the process.
lock_tools() {
    mkdir -p "$tools"
    if command -v flock >/dev/null; then
        exec 9>"$tools/lock"
        flock 9
    fi
}

# --- packages without root: apt with lists and a cache of its own --------------------------------

has_apt() { command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; }

# apt_open NAME [SOURCES-FILE]: from now on, apt uses the machine's sources, or only SOURCES-FILE, with its state in
# .tools/apt/NAME. Fails if the sources cannot be read; the reason is in $apt_log. If $apt_architecture is set, the
# packages are for that machine instead of this one.
apt_open() {
    local dir=$tools/apt/$1
    apt_log=$dir/log
    apt_conf=$dir/apt.conf
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    {
        say "Dir::State::Lists \"$dir/lists\";"
        say "Dir::Cache \"$dir/cache\";"
        say 'Dir::Cache::pkgcache "pkgcache.bin";'
        say 'Dir::Cache::srcpkgcache "srcpkgcache.bin";'
        say 'Acquire::Languages "none";'
        say 'Acquire::Retries "3";'
        say 'APT::Sandbox::User "root";' # apt would use another user, who may not write here
        # Distributions add hooks here that tidy up the system's own cache.
        say '#clear APT::Update::Pre-Invoke;'
        say '#clear APT::Update::Post-Invoke;'
        say '#clear APT::Update::Post-Invoke-Success;'
        if [ -n "${apt_architecture-}" ]; then
            say '#clear APT::Architectures;'
            say "APT::Architecture \"$apt_architecture\";"
            say "APT::Architectures { \"$apt_architecture\"; };"
        fi
        if [ -n "${2-}" ]; then
            say "Dir::Etc::SourceList \"$2\";"
            say 'Dir::Etc::SourceParts "/dev/null";'
            say 'Dir::Etc::Preferences "/dev/null";'
            say 'Dir::Etc::PreferencesParts "/dev/null";'
            # Ignore installed packages, because they are of another suite.
            say 'Dir::State::Status "/dev/null";'
            # Otherwise apt would only warn about a mirror that it cannot reach.
            say 'APT::Update::Error-Mode "any";'
        fi
    } >"$apt_conf"
    # apt reads this file after the machine's own settings (proxies, credentials), which stay in force.
    apt_get update >"$apt_log" 2>&1
}

apt_get() { LC_ALL=C apt-get -q -c "$apt_conf" "$@"; }
apt_cache() { LC_ALL=C apt-cache -c "$apt_conf" "$@"; }

# Removes the lists, which are large and would be read again anyway. The log stays.
apt_close() { rm -rf "${apt_conf%/*}/lists" "${apt_conf%/*}/cache"; }

# Prints in one line why apt failed.
apt_reason() {
    local line=
    [ ! -r "${apt_log-}" ] || line=$(sed -nE 's,^[EW]: ,,; T; s,  +, ,; p; q' "$apt_log")
    say "${line:-apt is not there or gave no answer}"
}

# The upstream version that would be fetched, 7.0.15 if the package has 5:7.0.15-1~deb12u10; empty if there is none.
apt_version() {
    apt_cache policy "$1" | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p'
}

# The libraries that the packages $@ need, directly or through another library.
apt_libraries() {
    apt_cache depends --recurse --important "$@" | awk -v roots="$*" '
        /^[^ ]/ { package = $1 }
        /^ *\|?(Pre)?Depends: / && $NF !~ /[<:]/ { needs[package] = needs[package] " " $NF }
        END {
            todo = split(roots, queue, " ")
            for (at = 1; at <= todo; at++) {
                count = split(needs[queue[at]], need, " ")
                for (i = 1; i <= count; i++)
                    if (need[i] ~ /^(lib|zlib)/ && !seen[need[i]]++) {
                        print need[i]
                        queue[++todo] = need[i]
                    }
            }
        }'
}

# Prints those package names of stdin that are not installed on this machine.
not_installed() {
    local format='${Package} ${db:Status-Status}\n'
    grep -vxF -f <(dpkg-query -W -f "$format" | sed -n 's/ installed$//p') || true
}

# apt_unpack FOLDER PACKAGE...: puts the files of all packages under FOLDER, or none.
apt_unpack() {
    local into=$1 debs=$1.debs deb
    shift
    rm -rf "$into" "$into.part" "$debs"
    mkdir -p "$debs" "$into.part"
    (cd "$debs" && apt_get download "$@") >>"$apt_log" 2>&1 || return 1
    for deb in "$debs"/*.deb; do
        dpkg-deb -x "$deb" "$into.part" || return 1
    done
    rm -rf "$debs"
    mv "$into.part" "$into"
}

# The folders below $@ in which a loader would look (lib, lib/x86_64-linux-gnu), if they exist, joined by colons.
library_path() {
    { find "$@" -name '*.so*' -printf '%h\n' 2>/dev/null || true; } | sort -u |
        sed -nE '\,(^|/)lib(/[^/]+-linux-[^/]+)?$,p' | paste -sd:
}

# wrap SCRIPT PROGRAM [LIBRARY-FOLDERS [LOADER [EMULATOR]]]: writes SCRIPT, which becomes PROGRAM by exec, so that a
# signal to the started process reaches the server itself. Paths without a leading / are relative to SCRIPT's folder.
# With LOADER, PROGRAM runs on that loader, which brings its own C library. With EMULATOR, a path with a leading /, the
# emulator runs the loader.
wrap() {
    local program=$2 folders=${3-} loader=${4-} emulator=${5-}
    folders=${folders:+\$here/${folders//:/:\$here/}}
    case $program in /*) ;; *) program=\$here/$program ;; esac
    {
        say '#!/bin/sh'
        say 'case $0 in /*) here=${0%/*} ;; *) here=$PWD/${0%/*} ;; esac'
        if [ -n "$loader" ]; then
            say "exec ${emulator:+\"$emulator\" }\"\$here/$loader\" --library-path \"$folders\" \"$program\" \"\$@\""
        else
            [ -z "$folders" ] ||
                say "export LD_LIBRARY_PATH=\"$folders\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\""
            say "exec \"$program\" \"\$@\""
        fi
    } >"$1"
    chmod +x "$1"
}

# The module as it is built for use, in the folder that cargo uses.
module() {
    local folder=${CARGO_TARGET_DIR:-target}
    case $folder in /*) ;; *) folder=$root/$folder ;; esac
    say "$folder/release/librlock.so"
}

# Builds the programs that run beside the module: the benchmark, `rlock`, the example and the conformance script's
# runner. They are built together, because each alone would compile tokio and the client again for the features that it
# requires. Packages given as arguments are built with them.
build_tools() {
    cargo build --quiet --locked --profile tools -p rlock-bench -p rlock-cli -p rlock-client -p rlock-example "$@" \
        --bins --example conformance
}

# The folder into which `build_tools` puts programs.
tools_folder() { say "$(dirname "$(dirname "$(module)")")/tools"; }

# Sets the folders in which Go keeps what it fetches and compiles, once for the package, the example and the benchmarks.
# The cache can be removed, and Go uses no other toolchain than the installed one.
in_go_folders() {
    export GOPATH=$tools/go/path GOCACHE=$tools/go/cache GOFLAGS='-modcacherw -mod=readonly' GOTOOLCHAIN=local
}

# private_server FOLDER [OPTION...]: starts a server with the module on a free port, which runs until this script ends.
# Sets $PORT.
private_server() {
    local tries folder=$1
    shift
    mkdir -p "$folder"
    for tries in 1 2 3 4 5; do
        PORT=$((20000 + RANDOM % 10000))
        "$tools/servers/default/redis-server" --port "$PORT" --bind 127.0.0.1 --dir "$folder" --save '' \
            --notify-keyspace-events KEd "$@" --loadmodule "${RLOCK_MODULE:-$(module)}" >"$folder/log" 2>&1 &
        server_pid=$!
        while kill -0 $server_pid 2>/dev/null; do
            # A foreign server on that port would answer as well, but with another process id.
            if "$tools/servers/default/redis-cli" -p "$PORT" info server 2>/dev/null | grep -q "^process_id:$server_pid.\?$"; then
                trap 'kill -CONT $server_pid; kill $server_pid; wait $server_pid' EXIT
                export PORT
                return
            fi
            sleep 0.1
        done
    done
    die "the server did not start: $(tail -n 3 "$folder/log")"
}

# --- the sum of all tests, which is the last line ------------------------------------------------

passed=0 failed=0 skipped=0

# What failed, a line each, so that the end of a long log names it. The first argument says where.
failures=()
remember() {
    local line
    while IFS= read -r line; do failures+=("$1: $line"); done
}

# The packages that `make test` tests in a debug build. The list is always complete: a dependency is compiled with the
# features that the chosen packages require, so another choice would compile the core and the simulation again.
tested=(-p rlock-core -p rlock-engine -p rlock-simulation -p rlock-testkit -p rlock-tests)

# Runs the command $@; a failure counts as one failed test.
step() {
    say "== $*"
    if ! "$@"; then
        failed=$((failed + 1))
        failures+=("$*")
        return 1
    fi
}

# Runs `cargo test $@` to the end, and adds its `test result:` lines to the sum. If the run failed but no test did (it
# did not compile, or it crashed), this counts as one failed test.
run_tests() {
    local output status=0 p f s
    output=$(mktemp "$tools/tests.XXXXXX")
    say "== cargo test --locked --no-fail-fast $*"
    cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$output" || status=1
    read -r p f s < <(awk '/^test result: / { p += $4; f += $6; s += $8 }
        END { print p + 0, f + 0, s + 0 }' "$output")
    remember test < <(failed_tests "$output")
    rm -f "$output"
    if [ "$f" = 0 ] && [ "$status" != 0 ]; then
        f=1
        failures+=("cargo test $*: failed outside of its tests")
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# The names of the tests that failed according to the output in the file $1, each with the first lines of what it said.
failed_tests() {
    sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$1"
    awk '/^---- .* stdout ----$/ { left = 8 } /^failures:$/ { left = 0 } /^$/ { next } left-- > 0 { print "    " $0 }' "$1"
}

# The short profile of `make torture`: every workload with a few faults, some with a primary that is cut off and with a
# disk that fails, some failovers, and a moment of chaos. It takes about a minute. A line without violations counts as a
# passed test. If the run failed but no line shows a failure, this counts as one failed test.
run_torture() {
    local output status=0 p f
    output=$(mktemp "$tools/tests.XXXXXX")
    say "== torture, the short profile"
    (
        RLOCK_SECONDS=1 FAULT=calm,kill,disconnect,promotion WORKLOAD='' torture_once || status=1
        RLOCK_SECONDS=1 FAULT=split,disk WORKLOAD=stays,quota torture_once || status=1
        RLOCK_SECONDS=1 FAULT=subscribers WORKLOAD=told,tickets torture_once || status=1
        RLOCK_FAILOVERS=8 VARIANT=one,two,stop,command torture_once failovers || status=1
        RLOCK_SECONDS=2 torture_once chaos || status=1
        RLOCK_SECONDS=4 torture_once permits || status=1
        exit $status
    ) 2>&1 | tee "$output" || status=1
    local results='^[a-z]+ +x [a-z-]+ +[0-9]+ operations|^[a-z-]+ +[0-9]+ (failovers|grants)'
    read -r p f < <(awk -v results="$results" '$0 ~ results { if (/ 0 violations/) p++; else f++ }
        END { print p + 0, f + 0 }' "$output")
    remember torture < <(grep -E "$results" "$output" | grep -v ' 0 violations')
    if [ "$f" = 0 ] && [ "$status" != 0 ]; then
        f=1
        remember torture < <(tail -n 8 "$output")
    fi
    rm -f "$output"
    passed=$((passed + p)) failed=$((failed + f))
}

torture_once() { cargo test --quiet --locked "${tested[@]}" --bench torture -- "$@"; }

# Prints what failed and the last line, and ends with the matching exit code.
sum_up() {
    [ ${#failures[@]} = 0 ] || printf 'FAILED %s\n' "${failures[@]}"
    local line="$passed passed, $failed failed"
    [ "$skipped" = 0 ] && [ -z "${1-}" ] || line+=", $skipped skipped"
    say "$line"
    [ "$failed" = 0 ] || exit 1
    exit 0
}
