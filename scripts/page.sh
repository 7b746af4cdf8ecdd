#!/usr/bin/env bash
# Tests the page of `rlock serve` in a real browser: headless Chromium, the machine's own or the one that `page.sh
# fetch` puts into .tools. Prints a line for each test, and the sum. The screenshots are in target/page. Without a
# browser: `SKIPPED page: why`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/debian.sh"
cd "$root"
may_fetch=${1-}
pictures=target/page

main() {
    local browser lines
    scripts/setup.sh
    . "$tools/env"
    browser=$(a_browser) || {
        skipped=1
        say "SKIPPED page: ${browser##*$'\n'}"
        sum_up with-skipped
    }
    [ -n "${RLOCK_MODULE-}" ] || cargo build --quiet --release --locked
    [ -n "${RLOCK-}" ] || build_tools
    export RLOCK_MODULE=${RLOCK_MODULE:-$(module)} RLOCK=${RLOCK:-$(tools_folder)/rlock}
    export RLOCK_SERVER=${RLOCK_SERVER:-$tools/servers/default/redis-server}
    lines=$tools/page.log
    timeout 900 python3 -B clients/cli/browser/try.py "$browser" "$pictures" 2>&1 | tee "$lines" || failed=1
    passed=$(grep -c '^ok ' "$lines" || true)
    sum_up with-skipped
}

# Prints the path of the browser. Messages about fetching it go to stderr.
a_browser() {
    local name said own=$tools/chromium
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip 'no Python 3.9'
    for name in google-chrome chromium chromium-browser; do
        # On some distributions, the program of this name only says how to install the browser.
        if command "$name" --version >/dev/null 2>&1; then
            command -v $name
            return
        fi
    done
    if [ ! -x "$own/chromium" ]; then
        [ "$may_fetch" = fetch ] || skip 'no Chromium here; `make page` fetches one'
        has_apt || skip 'no Chromium, and no apt to fetch it'
        say 'fetching Chromium (packages of this distribution, into .tools)' >&2
        apt_open host || true
        # shellcheck disable=SC2046 # package names
        apt_unpack "$own" chromium chromium-common fonts-dejavu-core \
            $(apt_libraries chromium chromium-common | not_installed) || skip "no Chromium: $(apt_reason)"
        # Some libraries are in their own subfolder (pulseaudio).
        wrap "$own/chromium" usr/lib/chromium/chromium \
            "$(cd "$own" && find usr/lib -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)"
        apt_close
    fi
    said=$("$own/chromium" --version 2>&1) || skip "Chromium does not start here: ${said##*$'\n'}"
    say "$own/chromium"
}

skip() {
    say "$*"
    exit 77
}

main
