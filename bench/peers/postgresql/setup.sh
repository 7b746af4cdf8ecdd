#!/usr/bin/env bash
# Finds PostgreSQL on this machine, or else unpacks the packages of its distribution into .tools/peers/postgresql. Then
# builds the worker that uses it.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
. "$here/lib.sh"

unpack() {
    local major
    has_apt || skip 'it is not installed, and there is no apt to fetch it with'
    mkdir -p "$fetched"
    apt_open host || true
    major=$(apt_version postgresql)
    major=${major%%.*}
    [ -n "$major" ] || skip "apt has no postgresql: $(apt_reason)"
    # shellcheck disable=SC2046 # package names
    apt_unpack "$fetched/packages" "postgresql-$major" \
        $(apt_libraries "postgresql-$major" | not_installed) || skip "not unpacked: $(apt_reason)"
    apt_close
}

need python3
[ "$(id -u)" != 0 ] || need setpriv
[ -n "$(postgresql_programs)" ] || unpack
programs=$(postgresql_programs)
(unprivileged "$programs/postgres" --version) >/dev/null 2>&1 ||
    skip "$programs/postgres does not run here; as root it is run by the user nobody, who must reach it"
build_go_worker
