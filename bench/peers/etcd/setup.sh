#!/usr/bin/env bash
# Builds etcd from Go's modules, with the versions pinned in go.sum, into .tools/peers/etcd (a minute on two cores).
# Builds the worker that uses it, too.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
build_go_worker
fetch in_go "$here" mod download
in_go "$here" build -o "$fetched/etcd" go.etcd.io/etcd/server/v3
