#!/usr/bin/env bash
# Installs redis-py from PyPI into a virtual environment in .tools/peers/python.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

need python3
fetch python3 -m venv "$fetched/venv"
build_packages python
fetch "$fetched/venv/bin/pip" install --disable-pip-version-check -r "$here/requirements.txt"
fetch "$fetched/venv/bin/pip" install --disable-pip-version-check --force-reinstall --no-deps "$packages"/python/dist/*.whl
