#!/usr/bin/env bash
# etcd by Go's modules, as go.sum pins it, built into .tools/peers/etcd (a minute of two cores); and
# the worker that talks to it.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
build_go_worker
fetch in_go "$here" mod download
in_go "$here" build -o "$fetched/etcd" go.etcd.io/etcd/server/v3
