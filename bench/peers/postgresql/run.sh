#!/usr/bin/env bash
# Measures PostgreSQL's advisory locks, in a database cluster that runs until this script ends.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
. "$here/lib.sh"

programs=$(postgresql_programs)
version=$( (unprivileged "$programs/postgres" --version) | sed -n 's/.* \([0-9][0-9.]*\).*/\1/p')
port=$(free_port)
data=$(mktemp -d)
[ "$(id -u)" != 0 ] || chown 65534:65534 "$data"
(unprivileged "$programs/initdb" --pgdata="$data/cluster" --username=peers --auth=trust --no-sync) >/dev/null

cluster() { unprivileged "$programs/postgres" -D "$data/cluster" "$@"; }
serve cluster -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=300
export PEER_POSTGRESQL="host=127.0.0.1 port=$port user=peers dbname=postgres sslmode=disable"
until_ready "$go_worker" postgresql free 1 0 </dev/null

all_work "postgresql $version advisory lock by pgx $(go_version github.com/jackc/pgx/v5)" \
    'a connection per contender; pg_advisory_lock waits for ever; no lease' \
    "$go_worker" postgresql
exit $code
