# shellcheck shell=bash
# Sourced by scripts/clients.sh.

venv=$home/python

package_tools() { python_is_there || skip 'no Python 3.11 with venv'; }

package_build() {
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

package_services() { say "fastapi=$venv/bin/python -B $root/clients/python/tests/rolling.py"; }

package_replay() { "$venv/bin/python" -B clients/python/tests/traces.py "$TRACES"; }

package_test() {
    check 'python types' "$venv/bin/python" -m mypy --config-file clients/python/pyproject.toml --no-incremental clients/python/src
    check 'python: the package index takes it' "$venv/bin/python" -m twine check --strict "$home"/tree/clients/python/dist/*
    check 'python README' "$venv/bin/python" -B clients/python/tests/readme.py
    check 'python: traces of the machine in Rust' "$venv/bin/python" -B clients/python/tests/traces.py clients/traces/golden.txt ${RLOCK_TRACES-}
    check 'python tests' env RLOCK_SERVER="$tools/servers/default/redis-server" RLOCK_MODULE="$RLOCK_MODULE" \
        "$venv/bin/python" -B -m pytest -p no:cacheprovider -q -o asyncio_mode=auto --rootdir clients/python/tests \
        clients/python/tests
    load sync
    load asyncio
    rolling python
    foreign_suite
}

# Runs fifteen seconds of load while the server is killed, stopped and cut off.
load() {
    check "python-$1 under load" "$venv/bin/python" -B clients/python/tests/load.py "$1" \
        "$tools/servers/default/redis-server" "$RLOCK_MODULE" 15
}

# Runs redis-py's own lock tests, from its source distribution: once with its own lock, and once with this package's.
foreign_suite() {
    local version folder theirs ours
    version=$(sed -n 's/^redis==//p' clients/python/requirements-test.txt)
    folder=$venv/redis-$version
    if [ ! -d "$folder" ]; then
        "$venv/bin/python" -m pip download --quiet --no-deps --no-binary redis --dest "$venv" "redis==$version" &&
            tar xzf "$folder.tar.gz" -C "$venv" || {
            say "SKIPPED redis-py's lock tests: its source distribution could not be fetched"
            return
        }
    fi
    theirs=$(foreign_tests theirs)
    ours=$(PYTHONPATH=$root/clients/python/tests/foreign foreign_tests ours -p redis_py_lock)
    case $ours in
        *[0-9]' failed'* | *[0-9]' error'*) ;;
        *passed*)
            say "ok redis-py's lock tests: redis-py's lock: $theirs; rlock.compat: $ours (what differs, and why: tests/foreign/redis_py_lock.py)"
            return
            ;;
    esac
    say "FAILED redis-py's lock tests: redis-py's lock: $theirs; rlock.compat: $ours"
    sed 's/^/    /' "$venv/foreign-ours.log"
}

# foreign_tests NAME OPTION...: prints the last line of pytest's output.
foreign_tests() {
    local log=$venv/foreign-$1.log
    shift
    run "$venv/bin/python" -B -m pytest -p no:cacheprovider -q -W ignore "$@" --rootdir "$folder" \
        --redis-url "redis://127.0.0.1:$PORT/9" "$folder/tests/test_lock.py" "$folder/tests/test_asyncio/test_lock.py" \
        >"$log" 2>&1 || true
    tail -n 1 "$log" | sed 's/, [0-9]* warnings//'
}
