#!/usr/bin/env bash
# Shows ten seconds of locks on a private server, printed as they happen.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
scripts/setup.sh
. "$tools/env"
say 'compiling the module (the first time takes some minutes, later ones a moment)'
cargo build --quiet --release --locked
# Build the demo by itself: if both were built together, their features would differ, and the module would be built
# again.
say 'compiling the demo: examples/rust with the client in clients/rust'
cargo build --quiet --profile tools --locked -p rlock-example
private_server "$tools/demo"
"$(tools_folder)/demo"
