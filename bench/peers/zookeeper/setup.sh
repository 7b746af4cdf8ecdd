#!/usr/bin/env bash
# Fetches ZooKeeper's server and Curator from the Maven repository, with the versions pinned in pom.xml, and builds the
# worker, into .tools/peers/zookeeper.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
build_java_worker
