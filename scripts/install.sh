#!/usr/bin/env bash
# Builds the module and puts it into PREFIX/lib/rlock. PREFIX is /usr by default, because the units of Debian, Ubuntu
# and Fedora let a server run code only below /usr/lib. The folder is the module's own, because the official Redis image
# loads everything in /usr/local/lib/redis/modules by itself, and a server that loads a module twice does not start. For
# packagers, DESTDIR is put in front of the path; the output does not show it. An old module is replaced instead of
# being written into, because a server may have it loaded.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

folder=${PREFIX:-/usr}/lib/rlock
scripts/setup.sh
. "$tools/env"
cargo build --release --locked
into=${DESTDIR-}$folder
mkdir -p "$into" 2>/dev/null && [ -w "$into" ] ||
    die "$into cannot be written to: \`sudo env PATH=\"\$PATH\" make install\`, or another PREFIX"
install -m 755 "$(module)" "$into/librlock.so.new"
mv -f "$into/librlock.so.new" "$into/librlock.so"
case $folder in
    /usr/lib/* | /lib/*) ;;
    *) say "A server that systemd runs may be kept from code outside of /usr/lib: add ExecPaths=$folder to its unit." ;;
esac
printf '\n%s\n\n    loadmodule %s\n\n' \
    "In your server's redis.conf or valkey.conf (redis.conf here says which other lines serve locks well):" \
    "$folder/librlock.so"
