# shellcheck shell=bash
# Where PostgreSQL's programs are, and as whom they run; sourced by setup.sh and run.sh.

# The folder of initdb and postgres: the machine's, else the one that setup.sh unpacked.
postgresql_programs() {
    local folder
    for folder in "$(pg_config --bindir 2>/dev/null)" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
        "$fetched"/packages/usr/lib/postgresql/*/bin; do
        if [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then
            say "$folder"
            return
        fi
    done
}

# PostgreSQL refuses to run as root; the user nobody may do what it needs.
unprivileged() {
    if [ "$(id -u)" = 0 ]; then
        set -- setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    fi
    # What was unpacked finds its own libraries.
    case $programs in
        "$fetched"/*) LD_LIBRARY_PATH=$(library_path "$fetched/packages") exec "$@" ;;
        *) exec "$@" ;;
    esac
}
