#!/usr/bin/env bash
# Measures other locks through their own clients, and RLOCK through the same clients: see bench/peers/README.md.
# `scripts/peers.sh [PEER...]` measures all peers, or those named. Standard output gets one line of JSON per
# measurement, and a line per peer that cannot be measured here; everything else goes to standard error. The locks on
# Redis are measured without persistence, and again with each write on disk before its reply.
set -euo pipefail
. "$(dirname "$0")/../bench/peers/lib.sh"
cd "$root"
[ $# -gt 0 ] || set -- java python node go rust postgresql etcd zookeeper

peer=peers
need python3
{
    PYTHONDONTWRITEBYTECODE=1 python3 -m unittest --quiet "$peers/test_measure.py"
    scripts/setup.sh
    . "$tools/env"
    cargo build --release --locked
} >&2

# The least wait that any lock can have.
! arrivals_only || all_work 'a queue without any delay (computed)' ''

# on_redis NAME OPTION...: measures the peer on a server with the module and with these options.
on_redis() (
    name=$1
    shift
    data=$(mktemp -d)
    PEER_PORT=$(free_port)
    export PEER_PORT
    # Turn on the events that the packages listen to, as the shipped redis.conf does.
    serve exec "$tools/servers/default/redis-server" --port "$PEER_PORT" --dir "$data" --save '' \
        ${PEER_LOADS:+--notify-keyspace-events KEd} --loadmodule "$(module)" "$@"
    until_ready "$tools/servers/default/redis-cli" -e -p "$PEER_PORT" RLOCK.HELP
    "$peers/$name/run.sh"
)

for name in "$@"; do
    status=0
    "$peers/$name/setup.sh" || status=$?
    case $status:$name in
        0:postgresql | 0:etcd | 0:zookeeper) "$peers/$name/run.sh" || code=1 ;;
        0:*)
            on_redis "$name" || code=1
            [ -n "${PEER_LOADS-}" ] || PEER_ON_DISK=1 on_redis "$name" --appendonly yes --appendfsync always || code=1
            ;;
        77:*) ;;
        *) code=1 ;;
    esac
done
exit $code
