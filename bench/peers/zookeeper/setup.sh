#!/usr/bin/env bash
# ZooKeeper's server and Curator from the Maven repository, as pom.xml pins them, and the worker,
# into .tools/peers/zookeeper.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
build_java_worker
