#!/usr/bin/env bash
# Tests the .deb in clean systems. Debian 12 and 13 are made from nothing with debootstrap, and booted with systemd in a
# container without a network (systemd-nspawn), so that the hardening of the servers' own units is in force. In each,
# packaging/try.sh installs, uses, upgrades and removes the package together with Redis and with Valkey. On Debian 13,
# rpm installs and removes the .rpm. Needs root. Missing tools come from Debian's packages into .tools; the systems are
# removed afterwards.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/debian.sh"
. "$root/scripts/cross.sh"
cd "$root"

skip() {
    say "SKIPPED packages-try: $*"
    exit 77
}

main() {
    [ "$(id -u)" = 0 ] || skip 'a system can be booted in a container by root only'
    case $(uname -m) in
        x86_64) deb_arch=amd64 ;;
        aarch64) deb_arch=arm64 ;;
        *) skip "there are no packages for $(uname -m)" ;;
    esac
    need_debootstrap
    need_nspawn
    dist=$(dist_folder)
    version=$(rlock_version)
    # Package the same module with a greater version, to test an upgrade of the package.
    PACKAGE_VERSION=$version.1 scripts/packages.sh "linux-$(uname -m)" >"$tools/packages.log" || die "$(tail -n 3 "$tools/packages.log")"
    mv "$dist/rlock_$version.1_$deb_arch.deb" "$tools/new.deb"
    rm -f "$dist"/rlock[-_]"$version".1[-_]*
    scripts/packages.sh "linux-$(uname -m)"
    roots=$(mktemp -d "$tools/roots.XXXXXX")
    trap 'rm -rf --one-file-system "$roots"' EXIT
    try bookworm redis
    try trixie redis valkey
    sum_up
}

need_nspawn() {
    local own=$tools/nspawn
    ! command -v systemd-nspawn >/dev/null || return 0
    if [ ! -x "$own/usr/bin/systemd-nspawn" ]; then
        open_suite bookworm
        say 'fetching systemd-container (Debian bookworm, into .tools)'
        # shellcheck disable=SC2046 # package names
        apt_unpack "$own" systemd-container libsystemd-shared \
            $(apt_libraries systemd-container | not_installed) || skip "$(apt_reason)"
        apt_close
    fi
    PATH=$own/usr/bin:$PATH
    LD_LIBRARY_PATH=$(library_path "$own/usr"):$own/usr/lib/$(uname -m)-linux-gnu/systemd
    export PATH LD_LIBRARY_PATH
}

# try SUITE SERVER...: tests the package in a new system of that suite.
try() {
    local suite=$1 system=$roots/$1 log=$tools/packages-try-$1.log server
    shift
    say "== $suite: ${*}"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus "$suite" "$system" "$(debian_mirror)" >"$log" 2>&1 ||
        skip "debootstrap failed: $(tail -n 1 "$log")"
    # Do not start servers while they are installed.
    printf '#!/bin/sh\nexit 101\n' >"$system/usr/sbin/policy-rc.d"
    chmod +x "$system/usr/sbin/policy-rc.d"
    inside apt-get --quiet --yes install "${@/%/-server}" "${@/%/-tools}" $([ "$suite" = bookworm ] || echo rpm) >>"$log" 2>&1 ||
        skip "no servers: $(tail -n 1 "$log")"
    rm "$system/usr/sbin/policy-rc.d"
    for server in "$@"; do inside systemctl disable "$server-server" >>"$log" 2>&1; done
    cp "$dist/rlock_${version}_$deb_arch.deb" "$system/old.deb"
    cp "$tools/new.deb" "$system/new.deb"
    cp packaging/try.sh "$system/try.sh"
    for server in "$@"; do
        boot "$server"
    done
    [ "$suite" = bookworm ] || rpm_in
    rm -rf --one-file-system "$system"
}

inside() { DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$system" "$@"; }

# Runs a command in a container, for what a program in a chroot is not allowed to do.
contained() {
    systemd-nspawn --quiet --keep-unit --register=no --private-network --pipe --directory "$system" "$@" >>"$log" 2>&1
}

# boot SERVER: boots the system, which runs the test and switches itself off.
boot() {
    cat >"$system/etc/systemd/system/rlock-try.service" <<END
[Unit]
SuccessAction=poweroff
FailureAction=poweroff
[Service]
Type=oneshot
ExecStart=/try.sh $1
StandardOutput=append:/try.log
StandardError=append:/try.log
TimeoutStartSec=300
[Install]
WantedBy=multi-user.target
END
    inside systemctl enable rlock-try.service >>"$log" 2>&1
    rm -f "$system/try.log"
    timeout 400 systemd-nspawn --quiet --keep-unit --register=no --private-network --directory "$system" --boot \
        >>"$log" 2>&1 </dev/null || true
    cat "$system/try.log" 2>/dev/null || tail -n 20 "$log"
    if grep -q "^$1 remove: with the steps" "$system/try.log"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "FAILED $suite $1, see $log"
    fi
}

# On Debian, no package that rpm knows can satisfy the dependencies. So the .rpm is installed with --nodeps, and its
# dependencies are printed.
rpm_in() {
    local file=rlock-$version-1.$(uname -m).rpm
    if [ ! -e "$dist/$file" ]; then
        say "SKIPPED rpm: it was not built"
        return
    fi
    cp "$dist/$file" "$system/rlock.rpm"
    say "rpm wants: $(inside rpm -qp --requires /rlock.rpm | grep -v '^rpmlib\|^config\|/bin/sh' | paste -sd' ')"
    if contained rpm -i --nodeps /rlock.rpm && contained rpm -V --nodeps rlock && inside test -x /usr/lib/rlock/librlock.so &&
        contained rlock --version && [ "$(stat -c %a "$system/etc/rlock/serve.env")" = 640 ] &&
        contained rpm -U --force --nodeps /rlock.rpm && contained rpm -e rlock && ! inside test -e /usr/lib/rlock; then
        passed=$((passed + 1))
        say "rpm: $file installed, verified and removed again by rpm $(inside rpm --version | grep -o '[0-9.]*$')"
    else
        failed=$((failed + 1))
        say "FAILED rpm, see $log"
    fi
}

main "$@"
