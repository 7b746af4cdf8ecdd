# shellcheck shell=bash
# Sourced by each run.sh: servers with the module, which end with the script. RLOCK_SERVER and RLOCK_MODULE are their paths.

folder=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait; rm -rf "$folder"' EXIT

# server PORT WORD...: starts one with those words of its command line, and waits until it can be reached.
server() {
    local port=$1
    shift
    mkdir "$folder/$port"
    (cd "$folder/$port" && exec "$RLOCK_SERVER" --port "$port" --bind 127.0.0.1 --save '' --loadmodule "$RLOCK_MODULE" "$@" >log) &
    pids+=($!)
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do kill -0 $!; sleep 0.1; done
}
