#!/usr/bin/env bash
# Makes .deb and .rpm packages of the modules and the command-line tool that `make release` builds, in target/dist. The
# modules are those that are linked to glibc, which Debian, Ubuntu, Fedora and RHEL use, or only those of the named
# platforms. (For Alpine, there is the image.) The same commit gives the same bytes. rpmbuild is the machine's own, or
# Debian's in .tools; without it, a line says `SKIPPED rpm: why`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/cross.sh"
cd "$root"

main() {
    local name
    [ $# -gt 0 ] || set -- linux-x86_64 linux-aarch64
    scripts/release.sh build "$@"
    dist=$(dist_folder)
    version=${PACKAGE_VERSION:-$(rlock_version)}
    SOURCE_DATE_EPOCH=$(source_epoch)
    export SOURCE_DATE_EPOCH
    for name in "$@"; do
        platform "$name"
        tree "$dist/package-$arch"
        deb
        rpm_of
        rm -rf "$dist/package-$arch"
    done
}

# Puts the files into the folder $1, with their paths as they will be below /.
tree() {
    local doc=$1/usr/share/doc/rlock
    rm -rf "$1"
    install -D -m 644 "$dist/librlock-$(rlock_version)-$platform.so" "$1/usr/lib/rlock/librlock.so"
    install -D -m 755 "$dist/rlock-cli-$(rlock_version)-$arch" "$1/usr/bin/rlock"
    install -D -m 644 packaging/rlock-serve.service "$1/usr/lib/systemd/system/rlock-serve.service"
    install -D -m 644 packaging/rlock.conf "$1/etc/rlock/rlock.conf"
    install -D -m 644 packaging/serve.env "$1/etc/rlock/serve.env"
    mkdir -p "$doc" "$1"/usr/share/man/man{1,7}
    gzip -9 --no-name <packaging/rlock.1 >"$1/usr/share/man/man1/rlock.1.gz"
    gzip -9 --no-name <packaging/rlock.7 >"$1/usr/share/man/man7/rlock.7.gz"
    install -m 644 packaging/README LICENSE-MIT LICENSE-APACHE "$doc/"
    gzip -9 --no-name <CHANGELOG.md >"$doc/changelog.gz"
    {
        say 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/' 'Files: *'
        sed -n 's/^Copyright/Copyright:/p' LICENSE-MIT
        say 'License: MIT or Apache-2.0' ' See LICENSE-MIT and LICENSE-APACHE in this folder.'
    } >"$doc/copyright"
    find "$1" -type d -exec chmod 755 {} +
    find "$1" -type f -exec chmod 644 {} +
    # Servers refuse a module that is not executable.
    chmod 755 "$1/usr/lib/rlock/librlock.so" "$1/usr/bin/rlock"
    # The file may contain a password.
    chmod 640 "$1/etc/rlock/serve.env"
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

deb() {
    local tree=$dist/package-$arch deb_arch file
    deb_arch=$([ "$arch" = x86_64 ] && echo amd64 || echo arm64)
    command -v dpkg-deb >/dev/null || { say 'SKIPPED deb: no dpkg-deb' && return; }
    mkdir -p "$tree/DEBIAN"
    cat >"$tree/DEBIAN/control" <<END
Package: rlock
Version: $version
Architecture: $deb_arch
Maintainer: RLOCK's authors <rlock@localhost>
Section: database
Priority: optional
Depends: libc6 (>= $oldest_glibc)
Suggests: redis-server (>= 5:7.0) | valkey-server
Enhances: redis-server, valkey-server
Installed-Size: $(du -sk --apparent-size "$tree/usr" "$tree/etc" | awk '{ sum += $1 } END { print sum }')
Description: locks as native commands of Redis and Valkey
 A module for redis-server 7.0 or later and valkey-server 7.2 or later: reentrant,
 fair read-write locks with leases and fencing tokens. Installing the package does
 not change any server; "man 7 rlock" shows the two lines to add to a server's
 configuration. The rlock command runs a program under a lock, and shows holders
 and waiters in a terminal, on a web page and as metrics.
END
    printf '%s\n' /etc/rlock/rlock.conf /etc/rlock/serve.env >"$tree/DEBIAN/conffiles"
    install -m 755 packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm "$tree/DEBIAN/"
    (cd "$tree" && find usr etc -type f | LC_ALL=C sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
    chmod 644 "$tree/DEBIAN"/{control,conffiles,md5sums}
    file=$dist/rlock_${version}_$deb_arch.deb
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$file" >/dev/null
    rm -rf "$tree/DEBIAN"
    say "${file##*/}: $(stat -c %s "$file") bytes"
}

rpm_of() {
    local work=$dist/package-rpm log=$tools/rpm.log
    need_rpmbuild || return 0
    rm -rf "$work"
    mkdir -p "$work"
    sed "s,@VERSION@,$version,; s,@ROOT@,$dist/package-$arch," packaging/rpm/rlock.spec >"$work/rlock.spec"
    "$rpmbuild" -bb --target "$arch-linux" --define "_topdir $work" --define "_rpmdir $dist" \
        --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' --define "_dbpath $work/db" \
        --define '_binary_payload w9.gzdio' "$work/rlock.spec" >"$log" 2>&1 || die "rpmbuild failed: $(tail -n 5 "$log")"
    rm -rf "$work"
    say "rlock-$version-1.$arch.rpm: $(stat -c %s "$dist/rlock-$version-1.$arch.rpm") bytes"
}

# Sets $rpmbuild: the machine's own, or Debian's in .tools, which needs the paths of its parts.
need_rpmbuild() {
    local own=$tools/rpm
    rpmbuild=$(command -v rpmbuild || true)
    [ -z "$rpmbuild" ] || return 0
    if [ ! -x "$own/usr/bin/rpmbuild" ]; then
        has_apt || { say 'SKIPPED rpm: no rpmbuild, and no apt to fetch it' && return 1; }
        lock_tools
        apt_open rpm || true
        say 'fetching rpm (packages of this distribution, into .tools)'
        # shellcheck disable=SC2046 # package names
        apt_unpack "$own" rpm rpm-common rpm2cpio $(apt_libraries rpm | not_installed) ||
            { say "SKIPPED rpm: $(apt_reason)" && return 1; }
        apt_close
    fi
    rpmbuild=$own/usr/bin/rpmbuild
    LD_LIBRARY_PATH=$(library_path "$own/usr")
    export LD_LIBRARY_PATH RPM_CONFIGDIR=$own/usr/lib/rpm MAGIC=${MAGIC:-/usr/share/misc/magic}
}

main "$@"
