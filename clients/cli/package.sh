# shellcheck shell=bash
# Sourced by scripts/clients.sh.

package_build() {
    build_tools
    "$(tools_folder)/rlock" --help | grep 'rlock run KEY'
    say "$(tools_folder)/rlock"
}

package_sources() { say clients/cli clients/rust; }

package_runners() { :; }

package_test() {
    . clients/rust/package.sh
    cargo_tests rlock-cli 'rlock tests'
}
