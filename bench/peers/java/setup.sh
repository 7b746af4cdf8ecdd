#!/usr/bin/env bash
# Fetches Redisson and Jedis from the Maven repository, with the versions pinned in pom.xml, and builds the worker, into
# .tools/peers/java.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
build_java_worker
javac --release 17 -d "$fetched/classes" -cp "$fetched/libraries/*" "$here/Permits.java" "$here/Claims.java"
