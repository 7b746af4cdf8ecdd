#!/usr/bin/env bash
# Measures etcd's lock API, on a single member that runs until this script ends.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

etcd=$fetched/etcd
version=$("$etcd" --version | sed -n 's/^etcd Version: //p')
data=$(mktemp -d)
client=http://127.0.0.1:$(free_port)
member=http://127.0.0.1:$(free_port)
serve exec "$etcd" --data-dir "$data/member" \
    --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$member" --initial-advertise-peer-urls "$member" \
    --initial-cluster "default=$member"
export PEER_ETCD=$client PEER_ON_DISK=1
until_ready "$go_worker" etcd free 1 0 </dev/null

all_work "etcd $version concurrency.Mutex by its client $(go_version go.etcd.io/etcd/client/v3)" \
    'one member, which syncs each write to disk; a session (lease 60 s) per contender' \
    "$go_worker" etcd
exit $code
