#!/usr/bin/env bash
# Runs the fuzz targets of core/fuzz, one after another. `fuzz.sh RUNS SECONDS [TARGET...]` limits each to that many
# executions and seconds. If there is a nightly compiler, the targets run with cargo-fuzz (which is built into .tools),
# and otherwise with a plain mutator on stable; the output says which. New findings stay in target/fuzz.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
runs=${1:-10000000} seconds=${2:-0}
targets=("${@:3}")
[ ${#targets[@]} -gt 0 ] || targets=(grammar snapshot histories)

# The longest input, in bytes: enough for twenty steps of a history, or for a lock with a few holds.
longest() {
    case $1 in
        grammar) say 256 ;;
        snapshot) say 120 ;;
        *) say 60 ;;
    esac
}

# corpus_of TARGET: writes the corpus as files. The repository has a line of hexadecimal digits for each input, and
# libFuzzer wants a file for each.
corpus_of() {
    local folder=$root/target/fuzz/corpus/$1 number=0 line
    rm -rf "$folder"
    mkdir -p "$folder"
    while IFS= read -r line; do
        # shellcheck disable=SC2059
        printf "$(sed 's/../\\x&/g' <<<"$line")" >"$folder/$((number += 1))"
    done <"$root/core/fuzz/corpus/$1.txt"
    say "$folder"
}

with_cargo_fuzz() {
    local target found corpus
    for target in "${targets[@]}"; do
        found=$root/target/fuzz/found/$target
        mkdir -p "$found"
        corpus=$(corpus_of "$target")
        say "== cargo-fuzz: $target, $runs executions, at most $seconds seconds (0: any)"
        # The core has no unsafe code, so a sanitizer would find nothing.
        (cd core && cargo +nightly fuzz run --sanitizer none --target-dir "$root/target/fuzz" "$target" \
            "$found" "$corpus" -- -runs="$runs" -max_total_time="$seconds" -max_len="$(longest "$target")" \
            -artifact_prefix="$root/target/fuzz/" -print_final_stats=1) 2>&1 |
            tee "$root/target/fuzz/$target.log" |
            grep -E --line-buffered '^(error|SUMMARY|stat::|Done|thread|assertion|  left| right)|pulse|DONE|Base64' ||
            die "$target: see target/fuzz/$target.log"
    done
}

on_stable() {
    local name status=0
    export RLOCK_STEPS=$runs
    [ "$seconds" = 0 ] || export RLOCK_SECONDS=$seconds
    for target in "${targets[@]}"; do
        case $target in
            grammar) name=the_words_of_a_command_may_be_any_bytes ;;
            snapshot) name=a_lock_and_an_effect_may_be_any_bytes ;;
            histories) name=the_core_and_the_naive_model_say_the_same_of_any_history ;;
            *) die "there is no target $target" ;;
        esac
        say "== the runner on stable Rust: $target, $runs executions"
        cargo test --release --locked -p rlock-core --test all -- --nocapture --exact "fuzz::$name" || status=1
    done
    return "$status"
}

if cargo +nightly --version >/dev/null 2>&1; then
    PATH=$tools/cargo-fuzz/bin:$PATH
    if ! cargo fuzz --version >/dev/null 2>&1; then
        say "cargo-fuzz is built into .tools once"
        cargo install cargo-fuzz --version ^0.13 --locked --root "$tools/cargo-fuzz" >"$tools/cargo-fuzz.log" 2>&1 || true
    fi
    if cargo fuzz --version >/dev/null 2>&1; then
        with_cargo_fuzz
        exit
    fi
    say "cargo-fuzz could not be built: $(tail -1 "$tools/cargo-fuzz.log")"
fi
on_stable
