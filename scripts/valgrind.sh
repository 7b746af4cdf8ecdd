#!/usr/bin/env bash
# Looks for memory errors and leaks of the module: the server tests, and a run that ends properly, under valgrind with a
# server that uses the C library's malloc (jemalloc would hide the module's memory). First, valgrind must report a
# planted use after free and a planted leak in another module: if it did not, its silence about ours would mean nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

command -v valgrind >/dev/null || die "valgrind is missing: apt install valgrind"
scripts/setup.sh
scripts/server.sh libc
. "$tools/env"
cargo build --release --locked

server=$tools/servers/libc/redis-server
cli=$tools/servers/libc/redis-cli
folder=$tools/valgrind
rm -rf "$folder"
mkdir -p "$folder/logs"
options=(--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --num-callers=30
    --suppressions="$tools/servers/libc/src/src/valgrind.sup")

# --- faults that valgrind must report ---
cc -g -shared -fPIC -o "$folder/planted.so" tests/planted/planted.c
valgrind "${options[@]}" --log-file="$folder/planted.log" "$server" --port 0 --unixsocket "$folder/planted.sock" --save '' --dir "$folder" \
    --loadmodule "$folder/planted.so" >/dev/null 2>&1 || true
grep -q 'Invalid read of size 1' "$folder/planted.log" || die "the planted use after free was not reported"
grep -q '7,777 bytes in 1 blocks are definitely lost' "$folder/planted.log" || die "the planted leak was not reported"
say "planted: the use after free and the leak are reported"

# --- a long session that ends properly, so that valgrind looks for leaks ---
valgrind "${options[@]}" --log-file="$folder/logs/session.log" "$server" --port 0 --unixsocket "$folder/sock" \
    --save '' --dir "$folder" --notify-keyspace-events KEd --loadmodule "$(module)" >"$folder/session.out" 2>&1 &
pid=$!
until "$cli" -s "$folder/sock" ping >/dev/null 2>&1; do
    kill -0 $pid 2>/dev/null || die "the server did not start: $(tail -3 "$folder/session.out")"
    sleep 0.1
done
awk 'BEGIN {
    for (i = 0; i < 3000; i++) {
        k = "k" i % 97
        print "RLOCK.ACQUIRE", k, "a" i % 5, "LEASE", 1 + i % 50; print "RLOCK.ACQUIRE", k, "b", "READ"
        print "RLOCK.ACQUIRE", k, "c", "READ", "QUEUE", 1 + i % 1000; print "RLOCK.ACQUIRE", k, "b", "UPGRADE", "QUEUE 5"
        print "RLOCK.RENEW", k, "b"; print "RLOCK.INFO", k, "WAITERS", 5; print "RLOCK.RELEASE", k, "a" i % 5
        print "RLOCK.RELEASE", k, "b", "ALL"; print "RLOCK.ACQUIRE", k, "d", "BLOCK", 1; print "RLOCK.CANCEL", k, "c"
        if (i % 10 == 0) print "DUMP", k
        if (i % 50 == 0) print "DEL", k
        if (i % 400 == 0) print "FLUSHALL"
    }
}' | "$cli" -s "$folder/sock" >/dev/null
"$cli" -s "$folder/sock" shutdown nosave >/dev/null 2>&1 || true
wait $pid || true

# --- the server tests: under valgrind, tests that are about milliseconds may fail, so only memory errors count ---
cat >"$folder/redis-server" <<END
#!/bin/sh
exec valgrind ${options[*]} --log-file=$folder/logs/%p.log $server "\$@"
END
chmod +x "$folder/redis-server"
RLOCK_MODULE=$(module) RLOCK_SERVER=$folder/redis-server RLOCK_CLI=$cli \
    cargo test --locked -p rlock-tests --test server 2>&1 | grep -E '^test result' || true

errors=$(cat "$folder"/logs/*.log | grep -c 'ERROR SUMMARY: [1-9]' || true)
say "$(find "$folder/logs" -name '*.log' | wc -l) servers under valgrind, $errors with errors"
grep -q 'definitely lost: 0 bytes\|no leaks are possible' "$folder/logs/session.log" ||
    die "leaks: see $folder/logs/session.log"
[ "$errors" = 0 ] || die "see $folder/logs"
