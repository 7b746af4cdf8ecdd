#!/usr/bin/env bash
# Measures this project's package for Rust. No other lock for redis-rs is measured.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

arrivals_only || exit 0
redis=$(sed -n '/^name = "redis"$/{n;s/version = "\(.*\)"/\1/p}' "$root/Cargo.lock")
contenders=1000 # one task each, as many as there are jobs
all_work 'RLOCK, package for Rust' "redis-rs $redis; its defaults" "$(tools_folder)/rlock-peer" package
exit $code
