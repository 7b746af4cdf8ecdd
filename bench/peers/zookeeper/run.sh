#!/usr/bin/env bash
# Measures Curator's lock on a single ZooKeeper server that runs until this script ends.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

warm_up=$jvm_warm_up
data=$(mktemp -d)
port=$(free_port)
cat >"$data/zoo.cfg" <<END
dataDir=$data/server
clientPort=$port
clientPortAddress=127.0.0.1
admin.enableServer=false
END
serve exec java -Xmx512m -cp "$fetched/libraries/*" \
    org.apache.zookeeper.server.ZooKeeperServerMain "$data/zoo.cfg"
export PEER_ZOOKEEPER=127.0.0.1:$port PEER_ON_DISK=1
PEER_KEY=ready until_ready timeout 10 "${java_worker[@]}" Curator free 1 0 </dev/null

all_work "curator $(java_version curator-recipes) InterProcessMutex on zookeeper $(java_version zookeeper)" \
    'one server, which syncs each write to disk; one client (session 60 s) per process' \
    "${java_worker[@]}" Curator
exit $code
