#!/usr/bin/env bash
# Makes small wrong changes to the core and to the engine, one by one: each must make the test fail that its list names.
# `mutants.sh WORD` makes only those whose title or file contains the word. `mutants.sh lists` makes none, and only checks
# that each fits the code. The changes are made in a copy, which is removed afterwards. The lists are
# scripts/mutants.txt (the core) and scripts/mutants-engine.txt.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR=$copy/target CARGO_PROFILE_DEV_DEBUG=0 RUST_BACKTRACE=0

titles=() files=() tests=() olds=() news=()

# Reads the list $2 of changes to the folder $1 into the arrays above. An entry begins with its title, and ends before
# the next title.
read_list() {
    local crate=$1 list=$2 line n=$((${#titles[@]} - 1))
    while IFS= read -r line; do
        case $line in
            '= '*)
                n=$((n + 1))
                titles[n]=${line#= } files[n]='' tests[n]='' olds[n]='' news[n]=''
                ;;
            'file '*) files[n]=$crate/src/${line#file } ;;
            'test '*) tests[n]=${line#test } ;;
            '- '*) olds[n]+=${olds[n]:+$'\n'}${line#- } ;;
            '+ '*) news[n]+=${news[n]:+$'\n'}${line#+ } ;;
            '#'* | '') ;;
            *) die "$list: what is '$line'?" ;;
        esac
    done <"$list"
}

# Keeps the entries whose title or file contains the word $1.
select_entries() {
    local n
    for n in "${!titles[@]}"; do
        case "${titles[n]} ${files[n]}" in *"$1"*) ;; *) unset "titles[n]" "tests[n]" ;; esac
    done
}

# How often $2 occurs in the file $1.
occurrences() {
    local text rest
    text=$(<"$1")
    rest=${text//"$2"/}
    say $(((${#text} - ${#rest}) / ${#2}))
}

# An entry that no longer fits the code proves nothing, and counts as failed; the others are still tried.
check_list() {
    local n times=0
    for n in "${!titles[@]}"; do
        [ -n "${tests[n]}" ] && [ -n "${olds[n]}" ] || die "${titles[n]}: no test, or no old text"
        [ -f "${files[n]}" ] && times=$(occurrences "${files[n]}" "${olds[n]}")
        [ "$times" = 1 ] && continue
        say "STALE: ${titles[n]}: found $times times, not once, in ${files[n]}: ${olds[n]}"
        failed=$((failed + 1))
        unset "titles[n]" "tests[n]"
    done
}

# Builds the test laws::name of the crate in folder $1, and prints the path of the program that runs it.
build() {
    cargo test --locked -p "rlock-$1" --test "only_${2%%::*}" --no-run 2>&1 |
        tee "$copy/log" | sed -n 's/^ *Executable .*(\(.*\))$/\1/p'
    return "${PIPESTATUS[0]}"
}

# Runs only laws::name. A test that never ends counts as failed, too.
run() {
    timeout 120 "$1" --exact "$2" >"$copy/log" 2>&1
}

# Makes each module of the tests of the crate in folder $1 a program of its own, so that trying a change does not
# compile the other modules again.
split_tests() {
    local name
    sed -i '/^autotests/d' "$1/Cargo.toml"
    for name in $(sed -n 's/^mod \(.*\);$/\1/p' "$1/tests/main.rs"); do
        printf '//! Tests.\n#![allow(dead_code)]\nmod support;\nmod %s;\n' "$name" >"$1/tests/only_$name.rs"
    done
}

# A failing test proves something only if it passes without the change.
check_tests() {
    local n crate name program before=$failed
    while read -r crate name; do
        if ! program=$(build "$crate" "$name") || ! run "$program" "$name"; then
            say "$(<"$copy/log")" "$name is red without any change"
            failed=$((failed + 1))
        elif ! grep -q '^test result: ok. 1 passed' "$copy/log"; then
            say "there is no test $name"
            failed=$((failed + 1))
        fi
    done < <(for n in "${!tests[@]}"; do say "${files[n]%%/*} ${tests[n]}"; done | sort -u)
    [ "$failed" = "$before" ] || sum_up
}

# Makes change $1, runs its test, and undoes the change.
try() {
    local n=$1 text program verdict=SURVIVED
    text=$(<"${files[n]}")
    printf '%s\n' "${text/"${olds[n]}"/"${news[n]}"}" >"${files[n]}"
    if ! program=$(build "${files[n]%%/*}" "${tests[n]}"); then
        verdict="does not compile"
    elif ! run "$program" "${tests[n]}"; then
        verdict="killed by ${tests[n]}"
        passed=$((passed + 1))
    fi
    case $verdict in killed*) ;; *) failed=$((failed + 1)) ;; esac
    say "$verdict: ${files[n]/src\//}: ${titles[n]}"
    printf '%s\n' "$text" >"${files[n]}"
}

read_list core "$root/scripts/mutants.txt"
read_list engine "$root/scripts/mutants-engine.txt"
check_list
if [ "${1-}" = lists ]; then
    passed=${#tests[@]}
    sum_up
fi
select_entries "${1-}"
# Copy everything that the workspace names; cargo would otherwise refuse to read it.
cp -R Cargo.toml Cargo.lock core engine simulation src testkit tests bench examples "$copy"
mkdir "$copy/clients"
cp -R clients/rust clients/cli "$copy/clients"
cd "$copy"
split_tests core
split_tests engine
check_tests
for n in "${!titles[@]}"; do
    try "$n"
done
sum_up
