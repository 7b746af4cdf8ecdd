#!/usr/bin/env bash
# Draws docs/pictures. Real runs give the sequences (pictures.py), `make demo` and `rlock top` in a terminal
# (terminal.py), and the page of `rlock serve` in a browser. The plot shows the figures of `make bench` (plot.py), and
# the diagrams need no run (diagrams.py). $RLOCK_DEMO and $RLOCK can name programs that are already built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
scripts/setup.sh
. "$tools/env"
[ -n "${RLOCK_MODULE-}" ] || cargo build --quiet --release --locked
export RLOCK_MODULE=${RLOCK_MODULE:-$(module)} RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
python3 -B scripts/pictures.py
python3 -B scripts/plot.py
python3 -B scripts/diagrams.py

home=$tools/terminal
if [ ! -x "$home/bin/python" ] || ! "$home/bin/python" -c 'import pyte' 2>/dev/null; then
    python3 -m venv "$home"
    "$home/bin/python" -m pip install --quiet pyte==0.8.2
fi
[ -n "${RLOCK_DEMO-}" ] && [ -n "${RLOCK-}" ] || build_tools
export RLOCK=${RLOCK:-$(tools_folder)/rlock}
"$home/bin/python" -B scripts/scene.py "$home/bin/python" -B scripts/terminal.py --last docs/pictures/top.svg 110 14 7 "$RLOCK" top
say 'ok top'
private_server "$tools/pictures"
"$home/bin/python" -B scripts/terminal.py docs/pictures/demo.svg 96 34 60 "${RLOCK_DEMO:-$(tools_folder)/demo}"
say 'ok demo'

scripts/page.sh fetch
cp target/page/page.png docs/pictures/
