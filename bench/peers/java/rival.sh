#!/usr/bin/env bash
# Starts a program that uses Redisson: `rival.sh act …` for `make permits RIVAL=1`, `rival.sh claims` for
# `make failovers RIVALS=1`. setup.sh has already fetched and built what it needs.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
program=Permits
[ "$1" = act ] || program=Claims
exec java -Xms64m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -cp "$fetched/classes:$fetched/libraries/*" "$program" "$@"
