# shellcheck shell=bash
# What the other scripts share; sourced, not run.
# All that is fetched goes to .tools in this checkout: no root, no system package, no service.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/.tools

# rustup puts cargo into the PATH of new shells; this one may be older than that.
if ! command -v cargo >/dev/null && [ -x "${HOME:-}/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH
fi

say() { printf '%s\n' "$*"; }
die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# 7.0.15 of "Redis server v=7.0.15 sha=…" or "Valkey server v=8.1.1 sha=…".
server_version() { "$1" --version 2>/dev/null | sed -n 's/.* v=\([0-9][0-9.]*\).*/\1/p'; }

# Is version $1 at least major version $2?
at_least() {
    local major=${1%%.*}
    [ -n "$major" ] && [ "$major" -ge "$2" ]
}

# --- long runs on several servers ----------------------------------------------------------------

# Sets up, says $SEED to the tests, and builds the module unless $RLOCK_MODULE names one.
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

# on_servers NAMES COMMAND...: COMMAND with $RLOCK_SERVER and $RLOCK_CLI, for each of these servers that is there. Fails
# if it failed for one; one that cannot be had here (77) says so.
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

# One setup at a time: two would write the same files. The lock goes with the process.
lock_tools() {
    mkdir -p "$tools"
    if command -v flock >/dev/null; then
        exec 9>"$tools/lock"
        flock 9
    fi
}

# --- packages without root: apt with lists and a cache of its own --------------------------------

has_apt() { command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; }

# apt_open NAME [SOURCES-FILE]: from now on apt uses the machine's sources, or only SOURCES-FILE,
# with state in .tools/apt/NAME. Fails when they cannot be read; the reason is in $apt_log.
# With $apt_architecture the packages are for that machine instead of this one.
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
        say 'APT::Sandbox::User "root";' # another user, as apt would take, may not write here
        # What distributions hook in here tidies up the system's own cache.
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
            # What is installed here is no candidate: it is of another suite.
            say 'Dir::State::Status "/dev/null";'
            # Else a mirror that is not reached is a mere warning.
            say 'APT::Update::Error-Mode "any";'
        fi
    } >"$apt_conf"
    # Read after the machine's own settings (proxies, credentials), which stay in force.
    apt_get update >"$apt_log" 2>&1
}

apt_get() { LC_ALL=C apt-get -q -c "$apt_conf" "$@"; }
apt_cache() { LC_ALL=C apt-cache -c "$apt_conf" "$@"; }

# The lists are large, and read anew next time anyway; the log stays.
apt_close() { rm -rf "${apt_conf%/*}/lists" "${apt_conf%/*}/cache"; }

# Why apt failed, in one line.
apt_reason() {
    local line=
    [ ! -r "${apt_log-}" ] || line=$(sed -nE 's,^[EW]: ,,; T; s,  +, ,; p; q' "$apt_log")
    say "${line:-apt is not there or gave no answer}"
}

# The upstream version that would be fetched, empty if there is none: 7.0.15 of 5:7.0.15-1~deb12u10.
apt_version() {
    apt_cache policy "$1" | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p'
}

# The libraries that the packages $@ need, directly or by another library.
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

# Of the package names on stdin, those that this machine has not installed.
not_installed() {
    local format='${Package} ${db:Status-Status}\n'
    grep -vxF -f <(dpkg-query -W -f "$format" | sed -n 's/ installed$//p') || true
}

# apt_unpack FOLDER PACKAGE...: their files under FOLDER, all or nothing.
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

# The folders below $@, as far as those are there, where a loader would look (lib, lib/x86_64-linux-gnu), joined by colons.
library_path() {
    { find "$@" -name '*.so*' -printf '%h\n' 2>/dev/null || true; } | sort -u |
        sed -nE '\,(^|/)lib(/[^/]+-linux-[^/]+)?$,p' | paste -sd:
}

# wrap SCRIPT PROGRAM [LIBRARY-FOLDERS [LOADER [EMULATOR]]]: SCRIPT becomes PROGRAM, by exec, so that a
# signal to the process that was started reaches the server itself. Paths without a leading / are taken
# from SCRIPT's folder. With LOADER it runs on that one, which brings its own C library; with EMULATOR,
# a path with a leading /, that one runs the loader.
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

# The module as built for use, wherever cargo puts it.
module() {
    local folder=${CARGO_TARGET_DIR:-target}
    case $folder in /*) ;; *) folder=$root/$folder ;; esac
    say "$folder/release/librlock.so"
}

# What is run beside the module: the benchmark, `rlock`, the example and the conformance script's runner. All of them at
# once, as each alone would compile tokio and the client for the features that it asks for itself. With other arguments,
# these are built beside them.
build_tools() {
    cargo build --quiet --locked --profile tools -p rlock-bench -p rlock-cli -p rlock-client -p rlock-example "$@" \
        --bins --example conformance
}

# Where `build_tools` leaves programs.
tools_folder() { say "$(dirname "$(dirname "$(module)")")/tools"; }

# What Go fetches and compiles: once, for the package, the example and the benchmarks. A cache that can be removed, and no
# other toolchain than the one that is here.
in_go_folders() {
    export GOPATH=$tools/go/path GOCACHE=$tools/go/cache GOFLAGS='-modcacherw -mod=readonly' GOTOOLCHAIN=local
}

# private_server FOLDER [OPTION...]: a server with the module on a free port, until this script ends. $PORT says which.
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
            # Another's server on that port would answer as well, but not with our process id.
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

# --- the sum of all that was tested, which is the last line --------------------------------------

passed=0 failed=0 skipped=0

# The packages that `make test` tests in a debug build. Always all of them: what a package depends on is compiled with the
# features that the chosen packages ask for, so another choice would compile the core and the simulation again.
tested=(-p rlock-core -p rlock-engine -p rlock-simulation -p rlock-testkit -p rlock-tests)

# Runs the command $@; if it fails, that counts as one failed test.
step() {
    say "== $*"
    if ! "$@"; then
        failed=$((failed + 1))
        return 1
    fi
}

# Runs `cargo test $@` to the end and adds its `test result:` lines to the sum. A run that failed
# with no failed test to show for it (it did not compile, it crashed) counts as one failed test.
run_tests() {
    local output status=0 p f s
    output=$(mktemp "$tools/tests.XXXXXX")
    say "== cargo test --locked --no-fail-fast $*"
    cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$output" || status=1
    read -r p f s < <(awk '/^test result: / { p += $4; f += $6; s += $8 }
        END { print p + 0, f + 0, s + 0 }' "$output")
    rm -f "$output"
    [ "$f" -gt 0 ] || f=$status
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# The short profile of `make torture`: every workload with a few faults, some with a primary that is cut off and with
# a disk that fails, some failovers, and a moment of chaos; about a minute. A line without violations is a test that passed. A run that
# failed with no such line to show for it counts as one failed test.
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
    read -r p f < <(awk '/^[a-z]+ +x [a-z-]+ +[0-9]+ operations|^[a-z-]+ +[0-9]+ (failovers|grants)/ { if (/ 0 violations/) p++; else f++ }
        END { print p + 0, f + 0 }' "$output")
    rm -f "$output"
    [ "$f" -gt 0 ] || f=$status
    passed=$((passed + p)) failed=$((failed + f))
}

torture_once() { cargo test --quiet --locked "${tested[@]}" --bench torture -- "$@"; }

# The last line, and the exit code that goes with it.
sum_up() {
    local line="$passed passed, $failed failed"
    [ "$skipped" = 0 ] && [ -z "${1-}" ] || line+=", $skipped skipped"
    say "$line"
    [ "$failed" = 0 ] || exit 1
    exit 0
}
