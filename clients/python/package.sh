# shellcheck shell=bash
# Sourced by scripts/clients.sh.

venv=$home/python

package_build() {
    python_is_there || skip 'no Python 3.11 with venv'
    local tree
    tree=$(copied python)
    fetched "$venv" clients/python/requirements-test.txt fetch_python
    rm -rf "$tree/dist" "$tree/build"
    "$venv/bin/python" -m build --quiet "$tree" || skip "python: setuptools could not be fetched"
    "$venv/bin/python" -m pip install --quiet --force-reinstall --no-deps "$tree"/dist/*.whl
    say "$(ls "$tree"/dist/*.whl)"
}

fetch_python() {
    python3 -m venv "$venv" && "$venv/bin/python" -m pip install --quiet -r clients/python/requirements-test.txt
}

package_runners() {
    say "python-sync=$venv/bin/python -B clients/python/tests/runner.py sync"
    say "python-asyncio=$venv/bin/python -B clients/python/tests/runner.py asyncio"
}

package_test() {
    if run "$venv/bin/python" -m mypy --config-file clients/python/pyproject.toml --no-incremental clients/python/src; then
        say 'ok python types (mypy --strict)'
    else
        say 'FAILED python types'
    fi
}
