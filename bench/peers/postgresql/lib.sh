# shellcheck shell=bash
# Finds PostgreSQL's programs, and runs them as the right user. Sourced by setup.sh and run.sh.

# Prints the folder of initdb and postgres: the machine's own, or else the one that setup.sh unpacked.
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

# PostgreSQL refuses to run as root. The user nobody has all the rights that it needs here.
unprivileged() {
    if [ "$(id -u)" = 0 ]; then
        set -- setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    fi
    # Let the unpacked programs find their own libraries.
    case $programs in
        "$fetched"/*) LD_LIBRARY_PATH=$(library_path "$fetched/packages") exec "$@" ;;
        *) exec "$@" ;;
    esac
}
