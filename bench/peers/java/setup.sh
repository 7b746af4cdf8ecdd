#!/usr/bin/env bash
# Redisson and Jedis from the Maven repository, and the worker, into .tools/peers/java.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
need javac
need mvn
fetch mvn -B -ntp -f "$here/pom.xml" -Dmaven.repo.local="$fetched/repository" \
    compile dependency:copy-dependencies -DoutputDirectory="$fetched/target/libraries"
