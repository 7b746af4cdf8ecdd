#!/usr/bin/env bash
# Builds the module and starts a server with it, in the foreground, on port 6380 (or $PORT). Locks survive a restart:
# the server's data stay in .tools/run, and the next start loads them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

port=${PORT:-6380}
# Bash can open a port like a file. If that works, some server already listens on it.
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    die "port $port is taken, perhaps by another \`make run\`: stop that one, or choose another port with \`PORT=6390 make run\`"
fi

scripts/setup.sh
. "$tools/env"
cargo build --release --locked

# There is one folder per port, because two servers must not write the same files.
data=.tools/run/$port
mkdir -p "$data"
cli=redis-cli
command -v redis-cli >/dev/null || cli=.tools/servers/default/redis-cli

# This is a copy, because CONFIG REWRITE writes into the file that the server was started with.
cp redis.conf "$data/redis.conf"
# The log goes to a file, so that the line to paste stays on the screen.
log=$root/$data/server.log
: >"$log"

cat <<END

Locks are served on port $port. In another terminal, from this folder:

    $cli -p $port

Data and log (server.log) are in $data. Ctrl-C stops the server.
END
"$tools/servers/default/redis-server" "$data/redis.conf" --port "$port" --dir "$data" --logfile "$log" \
    --loadmodule "$(module)" || {
    code=$?
    tail -n 5 "$log" >&2
    exit "$code"
}
