#!/usr/bin/env bash
# The client packages in clients/: a line for each step, and the sum. A language whose tool chain is missing or cannot
# fetch says SKIPPED and why.
#
#   clients.sh build [LANGUAGE...]   builds the packages
#   clients.sh test [LANGUAGE...]    builds them, their own tests and foreign suites, the conformance script on all topologies
#   clients.sh short [LANGUAGE...]   builds them, the short form of the conformance script: part of `make test`
#   clients.sh results [LANGUAGE...] builds them, the conformance script and rlock's tests on Redis 7.0 and Valkey 9.1, for
#                                    clients/conformance/RESULTS.md. ONLY=REGEX and ON=TOPOLOGIES play a part of it
#   clients.sh users [LANGUAGE...]   builds them, the short form as the user app of docs/operations.md on all topologies,
#                                    without TLS and with it
#   clients.sh replay [LANGUAGE...]  builds them; each replays COUNT (5000) traces of clients/traces, and must fail with those
#                                    of a machine in which a rule is broken
#   clients.sh storm [LANGUAGE...]   builds them, a storm of STORM (180) seconds for each: clients/conformance/storm.py
#   clients.sh rolling [LANGUAGE...] builds them, rolling restarts of their services for STORM (180) seconds each:
#                                    clients/conformance/rolling.py
#   clients.sh bench [LANGUAGE...]   what a free acquire and release cost beside the bare commands
#
# SERVERS="default valkey-9.1" chooses the servers of `test`, JOBS how many runners are played at a time (2; 5 in the short
# form). A language is a folder clients/LANGUAGE with a package.sh, which defines what is done in it:
#   package_tools     skips (below) where a tool is missing; may be left out
#   package_build     builds the package; the last line that it prints names the file
#   package_sources   prints what it is built of; clients/LANGUAGE if left out
#   package_runners   prints a line NAME=COMMAND for each of its conformance runners
#   package_services  prints such a line for each of its services; may be left out
#   package_replay    replays the traces in the file $TRACES; `rlock` has none, and leaves it out
#   package_test      its own tests and foreign suites, on the server at $PORT; prints lines `ok …`, `FAILED …`, `SKIPPED …`
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
home=$tools/clients
recorded=clients/conformance/results
storm_seconds=${STORM:-180}

main() {
    local what=${1-build} name
    shift || true
    [ $# -gt 0 ] || set -- $(cd clients && ls -d */package.sh | sed 's,/.*,,')
    scripts/setup.sh
    . "$tools/env"
    mkdir -p "$home"
    local needs_server=yes played=package_runners
    case $what in
        build | replay) needs_server= ;;
        rolling) played=package_services ;;
    esac
    [ -z "$needs_server" ] || module_is_there
    runners=()
    for name in "$@"; do
        is_built=
        build "$name" # not in a condition: see count
        [ -n "$is_built" ] || continue
        case $what in
            test) own_tests "$name" ;;
        esac
        [ -z "$needs_server" ] || add_runners "$name" "$played"
    done
    case $what in
        build) ;;
        test) for name in ${SERVERS:-default}; do conformance "$name" --jobs "${JOBS:-2}"; done ;;
        results)
            for name in ${SERVERS:-redis-7.0 valkey-9.1}; do
                conformance "$name" --jobs "${JOBS:-2}" --only "${ONLY-}" ${ON:+--on "$ON"} --results "$recorded/$name.csv"
                case " $* " in *' cli '*) rlock_results "$name" ;; esac
            done
            python3 -B clients/conformance/results.py page
            ;;
        replay) replays "$@" ;;
        # Most of it is waiting for a lease or a wait to end. There are nine runners: with four at a time, the last would
        # be alone.
        short)
            conformance default --short --on standalone,replicated --jobs "${JOBS:-5}"
            # One wait and one renewal each, as the documented user.
            conformance default --as app --short --only 'order of arrival|renewals extend a hold' \
                --on sentinel,cluster --jobs "${JOBS:-5}"
            ;;
        users)
            for name in ${SERVERS:-default}; do
                for secured in '' --tls; do
                    conformance "$name" --jobs "${JOBS:-2}" --as app $secured --short --only "${ONLY-}"
                done
            done
            ;;
        storm) played_by storm.py default --seconds "$storm_seconds" ;;
        rolling) played_by rolling.py default --seconds "$storm_seconds" ;;
        bench) conformance default --bench 10000 ;;
        *) die "usage: $0 build|test|short|results|users|replay|storm|rolling|bench [LANGUAGE...]" ;;
    esac
    sum_up with-skipped
}

# The version of the module, which is that of all packages.
rlock_version() { sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | sed -n 1p; }

module_is_there() {
    [ -n "${RLOCK_MODULE-}" ] || cargo build --quiet --release --locked
    RLOCK_MODULE=${RLOCK_MODULE:-$(module)}
}

# in_package NAME FUNCTION: a function of clients/NAME/package.sh, with -e, in a shell of its own.
in_package() {
    (
        set -e
        package_sources() { say "clients/$1"; } # unless it says otherwise
        . "clients/$1/package.sh"
        "$2" "$1"
    )
}

# One line for the step `NAME WHAT`, which is the rest of the arguments. $code is its exit code.
count() {
    local title=$1 log=$home/${1// /-}.log start=$SECONDS
    shift
    # In a condition, or before `||` and `&&`, -e means nothing to a function and all that it calls: it would go on after
    # what fails in it.
    set +e
    (
        set -e
        false
        exit 9
    )
    [ $? != 9 ] || die "$title: what fails in it would be missed"
    "$@" >"$log" 2>&1
    code=$?
    set -e
    case $code in
        0)
            passed=$((passed + 1))
            say "ok $title ($((SECONDS - start)) s): $(tail -n 1 "$log")"
            ;;
        77)
            skipped=$((skipped + 1))
            say "SKIPPED $title: $(tail -n 1 "$log")"
            ;;
        *)
            failed=$((failed + 1))
            say "FAILED $title:"
            tail -n 60 "$log"
            ;;
    esac
}

# Builds the package, unless it is there and was built of the very same files. Sets $is_built.
build() {
    local stamp=$home/$1.built files sources said
    said=$(in_package "$1" package_tools 2>&1) || {
        skipped=$((skipped + 1))
        say "SKIPPED $1 package: ${said##*$'\n'}"
        return 0
    }
    sources=$(in_package "$1" package_sources)
    files=$(find $sources Cargo.toml -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
    if [ "$(sed -n 1p "$stamp" 2>/dev/null)" = "$files" ] && [ -f "$(sed -n 2p "$stamp")" ]; then
        passed=$((passed + 1)) is_built=yes
        say "ok $1 package (as it was): $(sed -n 2p "$stamp")"
        return
    fi
    count "$1 package" in_package "$1" package_build
    [ "$code" = 0 ] || return 0
    is_built=yes
    {
        say "$files"
        tail -n 1 "$home/$1-package.log"
    } >"$stamp"
}

own_tests() {
    local lines
    lines=$(mktemp "$tools/clients.XXXXXX")
    (
        private_server "$home/server"
        in_package "$1" package_test
    ) 2>&1 | tee "$lines" | grep -E '^(ok|FAILED|SKIPPED|    ) ?' || true
    count_results "$lines"
    rm -f "$lines"
}

add_runners() {
    local line
    while read -r line; do
        runners+=(--runner "$line")
    done < <(in_package "$1" "$2")
}

# rlock_results SERVER: what rlock's own tests find there.
rlock_results() {
    local server=$tools/servers/$1/redis-server lines=$home/rlock-$1.log
    (
        export RLOCK_SERVER=$server RLOCK_CLI=$tools/servers/$1/redis-cli RLOCK_MODULE
        in_package cli package_test
    ) 2>&1 | tee "$lines" | grep '^FAILED ' || true
    python3 -B clients/conformance/results.py tests "$recorded/$1.csv" "$server" <"$lines"
    count_results "$lines"
}

# Adds what the lines of a file say.
count_results() {
    local p f s
    read -r p f s < <(awk '/^ok / { p++ } /^FAILED / { f++ } /^SKIPPED / { s++ } END { print p + 0, f + 0, s + 0 }' "$1")
    # Tests that ended before they said anything have failed as well.
    if [ $((p + f + s)) = 0 ]; then
        f=1
        say "FAILED ${1##*/}:"
        tail -n 60 "$1"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# Rules that are broken in a machine, one at a time (clients/rust/src/machine/planted.rs), as far as traces show it.
broken='SeatLeft UndoneUnnamed UndoneOnce PatienceIgnored OutageForgotten OutageFromCall WaitUnrepeated DoubtForgotten
UnsentUndone CloseIgnored GrantForgotten LeaseFromReply BreakBelieved'

# replays LANGUAGE...: each replays the traces of the machine, and must fail with those of each broken one.
replays() {
    local name planted said code differs='trace [0-9][0-9]* [a-z]* ' # whatever else fails is no difference
    export TRACES=$home/traces.txt RLOCK_ROOT=$root
    for planted in Nothing $broken; do
        scripts/simulate.sh traces "${COUNT:-5000}" "${SEED:-1}" "$planted" >"$TRACES"
        for name in "$@"; do
            [ "$name" != cli ] || continue
            code=0
            said=$(in_package "$name" package_replay 2>&1) || code=$?
            if [ "$planted" = Nothing ] && [ "$code" = 0 ]; then
                passed=$((passed + 1))
                say "ok $name: $(grep -c '^trace ' "$TRACES") traces are answered as the machine in Rust answers them"
            elif [ "$planted" != Nothing ] && grep -q "$differs" <<<"$said"; then
                passed=$((passed + 1))
                say "ok $name, $planted: found in $(grep -m 1 -o "$differs.*" <<<"$said" | cut -c 1-120)"
            else
                failed=$((failed + 1))
                say "FAILED $name, $planted: exit code $code:"
                tail -n 30 <<<"$said"
            fi
        done
    done
}

# conformance SERVER OPTION...: the one script, with all runners.
conformance() { played_by run.py "$@"; }

# played_by PROGRAM SERVER OPTION...: a program of clients/conformance, with all runners.
played_by() {
    local program=$1 server=$2 log=$home/conformance-$2.log code=0 p='' f='' s=''
    shift 2
    [ ${#runners[@]} -gt 0 ] || return 0
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        skipped=$((skipped + 1))
        say 'SKIPPED conformance: no Python 3.11'
        return
    fi
    if [ "$server" != default ] && [ ! -x "$tools/servers/$server/redis-server" ] && ! scripts/server.sh "$server"; then
        skipped=$((skipped + 1))
        return
    fi
    say "== conformance on $("$tools/servers/$server/redis-server" --version | sed 's/ sha.*//')"
    python3 -B "clients/conformance/$program" --server "$tools/servers/$server/redis-server" --module "$RLOCK_MODULE" \
        "$@" "${runners[@]}" 2>&1 | tee "$log" | if [ -t 1 ]; then cat; else grep -v '^ok \|^n/a ' || true; fi ||
        code=${PIPESTATUS[0]}
    read -r p f s < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped.*/\1 \2 \3/p' "$log") || true
    case " $* " in *' --bench '*) return 0 ;; esac
    # A run that ended before its sum, or in another way than it says, has failed.
    [ "$code" = 0 ] || [ "${f:-0}" != 0 ] || f=1
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-1})) skipped=$((skipped + ${s:-0}))
}

# --- what the package.sh of each language uses ---------------------------------------------------

skip() {
    say "$*"
    exit 77
}

# check TITLE COMMAND...: one line for a test of a package, with what it said when it failed.
check() {
    local title=$1 said
    shift
    if said=$(run "$@" 2>&1); then
        say "ok $title"
    else
        say "FAILED $title"
        sed 's/^/    /' <<<"$said"
    fi
}

# What hangs has failed.
run() { timeout 600 "$@"; }

# A copy of clients/$1 where its tools may leave what they make, with what packages take from the root beside it: the
# version and the licences. Its path is the last line.
copied() {
    mkdir -p "$home/tree/clients"
    cp -p Cargo.toml LICENSE-MIT LICENSE-APACHE "$home/tree/"
    mkdir -p "$home/tree/clients/$1"
    # What is no longer there shall not be packed; what was fetched or compiled stays.
    find "$home/tree/clients/$1" -mindepth 1 -maxdepth 1 ! -name node_modules ! -name target -exec rm -rf {} +
    (cd "clients/$1" && find . -type f -print0 | tar cf - --null -T -) | tar xf - -C "$home/tree/clients/$1"
    say "$home/tree/clients/$1"
}

# fetched FOLDER FILE COMMAND...: runs COMMAND unless it did for this very FILE.
fetched() {
    local folder=$1 file=$2
    shift 2
    mkdir -p "$folder"
    cmp -s "$file" "$folder/fetched" && return
    "$@" || skip "${folder##*/}: what it depends on could not be fetched"
    cp "$file" "$folder/fetched"
}

python_is_there() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && python3 -c 'import venv, ensurepip'; }

# Fifteen seconds of rolling restarts, for each of its services.
rolling() {
    local line
    python_is_there || {
        say "SKIPPED $1: rolling restarts: no Python 3.11 with venv"
        return 0
    }
    package_services | while IFS= read -r line; do
        check "$1: rolling restarts of ${line%%=*}" python3 -B "$root/clients/conformance/rolling.py" \
            --server "$tools/servers/default/redis-server" --module "$RLOCK_MODULE" --seconds 15 --runner "$line"
    done
}

package_tools() { :; }

package_services() { :; }

main "$@"
