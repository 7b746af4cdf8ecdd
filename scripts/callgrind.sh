#!/usr/bin/env bash
# Instructions of an ACQUIRE + RELEASE pair of a free lock, beside SET NX PX + DEL and beside SET NX PX and a
# compare-and-delete script, counted by callgrind: the difference of two run lengths, so that start-up drops
# out. Repeatable to 1-3 %, whatever else the machine does. `make bench-pair`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

command -v valgrind >/dev/null || die "valgrind is missing: apt install valgrind"
scripts/setup.sh
. "$tools/env"
cargo build --release --locked
server=${RLOCK_SERVER:-$tools/servers/default/redis-server}
cli=${RLOCK_CLI:-$tools/servers/default/redis-cli}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

owner=0f9a7c3e-5d0b-4c57-9c51-2f6c4c1f7a10:17
delete_if="if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

# $1: what to do, $2: pairs. Commands in the server's protocol, over 4096 keys.
commands() {
    awk -v what="$1" -v pairs="$2" -v owner="$owner" -v sha="$(printf %s "$delete_if" | sha1sum | cut -d" " -f1)" '
        function say(line, words, n, i) {
            n = split(line, words, "|")
            printf "*%d\r\n", n
            for (i = 1; i <= n; i++) printf "$%d\r\n%s\r\n", length(words[i]), words[i]
        }
        BEGIN {
            for (i = 0; i < pairs; i++) {
                key = "lock:" i % 4096
                if (what == "ping") { say("PING"); say("PING") }
                if (what == "rlock") {
                    say("RLOCK.ACQUIRE|" key "|" owner "|LEASE|30000"); say("RLOCK.RELEASE|" key "|" owner)
                }
                if (what == "set-del") { say("SET|" key "|" owner "|NX|PX|30000"); say("DEL|" key) }
                if (what == "set-script") {
                    say("SET|" key "|" owner "|NX|PX|30000"); say("EVALSHA|" sha "|1|" key "|" owner)
                }
            }
        }'
}

# $1: what to do, $2: pairs. Instructions of the whole server.
instructions() {
    local socket=$folder/sock out=$folder/out.$1.$2
    # The server may be started by a script that becomes it: followed into what it becomes.
    valgrind --tool=callgrind --trace-children=yes --callgrind-out-file="$out" "$server" --port 0 --unixsocket "$socket" --save '' \
        --dir "$folder" --loadmodule "$(module)" >"$folder/log" 2>&1 &
    local pid=$!
    until "$cli" -s "$socket" ping >/dev/null 2>&1; do
        kill -0 $pid 2>/dev/null || die "the server did not start: $(tail -3 "$folder/log")"
        sleep 0.1
    done
    "$cli" -s "$socket" script load "$delete_if" >/dev/null
    commands "$1" "$2" | "$cli" -s "$socket" --pipe >/dev/null
    "$cli" -s "$socket" shutdown nosave >/dev/null 2>&1 || true
    wait $pid || true
    awk '/^(summary|totals):/ { print $2; exit }' "$out"
}

short=2000 long=12000
declare -A cost
for what in ping set-del rlock set-script; do
    cost[$what]=$((($(instructions $what $long) - $(instructions $what $short)) / (long - short)))
done
printf '%-34s %8s %s\n' 'instructions per pair' '' 'beside SET NX PX + DEL'
for row in 'ping|PING + PING' 'set-del|SET NX PX + DEL' 'rlock|RLOCK.ACQUIRE + RLOCK.RELEASE' \
    'set-script|SET NX PX + compare-and-delete'; do
    what=${row%%|*}
    awk -v name="${row#*|}" -v cost="${cost[$what]}" -v base="${cost[set-del]}" \
        'BEGIN { printf "%-34s %8d %.2fx\n", name, cost, cost / base }'
done
