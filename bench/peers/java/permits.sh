#!/usr/bin/env bash
# Starts one process of workers that use Redisson, for `make permits RIVAL=1`. setup.sh has already fetched and built
# what it needs.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
exec java -Xms64m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -cp "$fetched/classes:$fetched/libraries/*" Permits "$@"
