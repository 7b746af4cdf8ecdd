#!/usr/bin/env bash
# Ten seconds of locks on a private server, printed as they happen.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
scripts/setup.sh
. "$tools/env"
cargo build --quiet --release --locked
# By itself: together the two would share other features, and the module be built once more.
cargo build --quiet --release --locked -p rlock-example
private_server "$tools/demo"
"$(dirname "$(module)")/demo"
