#!/usr/bin/env bash
# docs/pictures, each of a real run: the sequences (pictures.py), and the page of `rlock serve` in a browser.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
scripts/setup.sh
. "$tools/env"
[ -n "${RLOCK_MODULE-}" ] || cargo build --quiet --release --locked
export RLOCK_MODULE=${RLOCK_MODULE:-$(module)} RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
python3 -B scripts/pictures.py
scripts/page.sh fetch
cp target/page/page.png docs/pictures/
