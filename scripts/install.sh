#!/usr/bin/env bash
# Builds the module and puts it where servers look for modules: PREFIX/lib/redis/modules. DESTDIR, for packagers, comes
# before it and is no part of what is said. An old module is replaced, not written into: a server may have it loaded.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

folder=${PREFIX:-/usr/local}/lib/redis/modules
scripts/setup.sh
. "$tools/env"
cargo build --release --locked
into=${DESTDIR-}$folder
mkdir -p "$into" && [ -w "$into" ] ||
    die "$into cannot be written to: \`sudo env PATH=\"\$PATH\" make install\`, or another PREFIX"
install -m 755 "$(module)" "$into/librlock.so.new"
mv -f "$into/librlock.so.new" "$into/librlock.so"
printf '\n%s\n\n    loadmodule %s\n\n' \
    "In your server's redis.conf or valkey.conf (redis.conf here says which other lines serve locks well):" \
    "$folder/librlock.so"
