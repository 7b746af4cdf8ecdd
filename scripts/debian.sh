# shellcheck shell=bash
# Fetches packages of another Debian suite, or for another machine, from the mirror that this machine uses anyway. This
# file is sourced after lib.sh, not run. The caller defines `skip`, which prints the reason and ends the script.

# open_suite SUITE [ARCHITECTURE]: from now on, apt reads that suite's packages and sources.
open_suite() {
    local suites=$1 suite mirror keyring name=$1${2:+-$2}
    local sources=$tools/apt/$name/sources.list
    [ "$(. /etc/os-release && say "${ID-}")" = debian ] ||
        skip "it comes from Debian $1, and this system's mirror has other packages"
    has_apt || skip 'it comes as a Debian package, and this system has no apt'
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || skip "it comes as a Debian package, and this machine's apt knows no Debian mirror"
    for keyring in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp} ''; do
        [ ! -e "$keyring" ] || break
    done
    mkdir -p "${sources%/*}"
    # Experimental holds few packages. The libraries that they need are in sid.
    [ "$1" != experimental ] || suites='experimental sid'
    for suite in $suites; do
        say "deb${keyring:+ [signed-by=$keyring]} $mirror $suite main"
        say "deb-src${keyring:+ [signed-by=$keyring]} $mirror $suite main"
    done >"$sources"
    apt_architecture=${2-} apt_open "$name" "$sources" || skip "$(apt_reason)"
    if [ "$1" = experimental ]; then
        # Otherwise apt would prefer the older server of sid. The libraries are not pinned, so the server gets those
        # that it was built with.
        printf '%s\n' 'Package: redis* valkey*' 'Pin: release a=experimental' 'Pin-Priority: 990' >"${sources%/*}/preferences"
        say "Dir::Etc::Preferences \"${sources%/*}/preferences\";" >>"$apt_conf"
    fi
}

# Finds debootstrap: the system's own, or Debian's package in .tools.
need_debootstrap() {
    local own=$tools/debootstrap
    ! command -v debootstrap >/dev/null || return 0
    if [ ! -x "$own/usr/sbin/debootstrap" ]; then
        open_suite bookworm
        say 'fetching debootstrap (Debian bookworm, into .tools)'
        apt_unpack "$own" debootstrap || skip "$(apt_reason)"
        apt_close
    fi
    PATH=$own/usr/sbin:$PATH
    export PATH DEBOOTSTRAP_DIR=$own/usr/share/debootstrap
}

# The first address in apt's sources that serves Debian itself, not only its security updates.
debian_mirror() {
    # This prints one line per source: "http://… bookworm bookworm-updates main".
    {
        { sed -s '$G' /etc/apt/sources.list.d/*.sources 2>/dev/null || true; } | awk '
            function flush() {
                if (types ~ /(^| )deb( |$)/ && enabled !~ /^(no|false)/) print uri, suites, components
                types = uri = suites = components = enabled = ""
            }
            /^#/ { next }
            /^[[:space:]]*$/ { flush(); next }
            { field = tolower($1); value = $0; sub(/^[^:]*:[[:space:]]*/, "", value) }
            field == "types:" { types = value }
            field == "uris:" { uri = $2 }
            field == "suites:" { suites = value }
            field == "components:" { components = value }
            field == "enabled:" { enabled = tolower(value) }'
        # (A missing file is not a failure: most machines use only one of the two formats.)
        { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null || true; } |
            sed -nE 's/^deb[[:space:]]+(\[[^]]*\][[:space:]]+)?//p'
    } | awk '$1 !~ /^cdrom:/ && / main( |$)/ && $2 !~ /-security|\/updates/ && !found++ { print $1 }'
}
