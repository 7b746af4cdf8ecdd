#!/usr/bin/env bash
# Checks the image, the compose file and the Kubernetes files in images/ with linters. A Docker engine is not required:
# the script executes the Dockerfile's steps with chroot, in systems made of packages. These are Debian 13 with its
# Redis and with its Valkey, and, in place of Alpine, a system of busybox, musl and a Redis that is linked to musl. The
# resulting server runs as the image would run it, and must grant locks. `images.sh build` makes the four images with
# Docker.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$root/scripts/debian.sh"
. "$root/scripts/cross.sh"
cd "$root"

skip() {
    skipped=$((skipped + 1))
    say "SKIPPED images: $*"
    sum_up with-skipped
}

main() {
    local file
    if [ "${1-}" = build ]; then
        build
        return
    fi
    need_linters
    step "$lint/hadolint" images/Dockerfile && passed=$((passed + 1)) || true
    step "$lint/check-jsonschema" --builtin-schema vendor.compose-spec images/compose.yaml && passed=$((passed + 1)) || true
    for file in images/kubernetes.yaml images/kubernetes-ha.yaml; do
        step "$lint/kubernetes-validate" --strict "$file" && passed=$((passed + 1)) || true
        step "$lint/python" -B images/reasons.py "$file" && passed=$((passed + 1)) || true
    done
    step "$lint/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*.yml && passed=$((passed + 1)) || true
    [ "$(id -u)" = 0 ] || skip 'the steps of a Dockerfile need root'
    scripts/release.sh build "linux-$(uname -m)" "linux-musl-$(uname -m)"
    roots=$(mktemp -d "$tools/roots.XXXXXX")
    trap 'rm -rf --one-file-system "$roots"' EXIT
    debian
    like_alpine
    sum_up with-skipped
}

build() {
    local server
    command -v docker >/dev/null && docker info >/dev/null 2>&1 || die 'there is no Docker engine'
    for server in redis:8.6.3 redis:8.6.3-alpine valkey/valkey:9.1.2 valkey/valkey:9.1.2-alpine; do
        docker build -f images/Dockerfile --build-arg "SERVER=$server" --build-arg "VERSION=$(rlock_version)" \
            -t "rlock:$(rlock_version)-$(tr : - <<<"${server##*/}")" .
    done
}

need_linters() {
    local home=$tools/lint
    lint=$home/bin
    cmp -s images/lint-requirements.txt "$home/fetched" && return
    python3 -m venv "$home" && "$lint/python" -m pip install --quiet -r images/lint-requirements.txt ||
        skip 'the linters could not be fetched from PyPI'
    cp images/lint-requirements.txt "$home/fetched"
}

debian() {
    local base=$roots/debian
    need_debootstrap
    say '== Debian 13'
    debootstrap --variant=minbase trixie "$base" "$(debian_mirror)" >"$tools/images.log" 2>&1 ||
        skip "debootstrap failed: $(tail -n 1 "$tools/images.log")"
    printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
    chmod +x "$base/usr/sbin/policy-rc.d"
    local server
    for server in redis valkey; do
        cp -a "$base" "$base-$server"
        entrypoint "$base-$server" $server
        DEBIAN_FRONTEND=noninteractive chroot "$base-$server" apt-get --quiet --yes install $server-server $server-tools \
            >>"$tools/images.log" 2>&1 || skip "no $server: $(tail -n 1 "$tools/images.log")"
        execute "$base-$server" $server
    done
    if ! command -v ip >/dev/null; then
        skipped=$((skipped + 1))
        say 'SKIPPED compose: no ip to make networks with, apt install iproute2'
        return
    fi
    # Once with addresses, as in compose.yaml, and once with names, as in kubernetes-ha.yaml.
    local names
    for names in '' names; do
        mkdir "$roots/compose$names"
        step "$lint/python" -B images/failover.py "$base-redis-image" images/compose.yaml "$roots/compose$names" $names &&
            passed=$((passed + 1)) || tail -n 5 "$roots/compose$names"/*.log
    done
}

# entrypoint BASE SERVER: writes what the entrypoint of the official images does with the command that images/ gives it,
# with these servers' own default for protected-mode. If it runs as root, it becomes the server's user; since Redis
# 8.0.2, files that node.sh has written as root then still belong to root.
entrypoint() {
    mkdir -p "$1/usr/local/bin" "$1/data"
    cat >"$1/usr/local/bin/docker-entrypoint.sh" <<END
#!/bin/sh
case \$1 in
    -* | *.conf) set -- $2-server "\$@" --protected-mode no ;;
esac
[ "\$(id -u)" != 0 ] || exec setpriv --reuid=$2 --regid=$2 --clear-groups -- "\$0" "\$@"
umask 0077
exec "\$@"
END
    chmod 755 "$1/usr/local/bin/docker-entrypoint.sh"
}

like_alpine() {
    local base=$roots/musl platform_of_it=linux-musl-$(uname -m)
    say '== busybox and musl'
    scripts/foreign.sh "$platform_of_it" || skip 'no server linked to musl'
    mkdir -p "$base"/{bin,lib,tmp,data,etc,usr/local/bin}
    open_suite bookworm
    apt_unpack "$roots/busybox" busybox-static || skip "no busybox: $(apt_reason)"
    apt_close
    cp "$(find "$roots/busybox" -path '*/bin/busybox' -type f | sed -n 1p)" "$base/bin/"
    chroot "$base" /bin/busybox --install -s /bin
    cp "$tools/servers/$platform_of_it"/libc/lib/*/libc.so "$base/lib/ld-musl-$(uname -m).so.1"
    cp "$tools/servers/$platform_of_it/bin/redis-server" "$base/usr/local/bin/"
    say 'redis:x:999:999::/data:/bin/sh' >"$base/etc/passwd"
    say 'redis:x:999:' >"$base/etc/group"
    entrypoint "$base" redis
    execute "$base" redis
}

# execute BASE SERVER: executes the Dockerfile in BASE, and runs the result as the entrypoint does: as the server's
# user, in /data.
execute() {
    local base=$1 name=$2 result=$1-image command pid i token cli=$tools/servers/default/redis-cli
    "$lint/python" images/steps.py "$base" "$result" images/Dockerfile . "VERSION=$(rlock_version)" | tee "$tools/images-steps.log"
    command=$(tail -n 1 "$tools/images-steps.log" | "$lint/python" -c 'import json, sys; print(*json.load(sys.stdin))')
    chroot "$result" chown "$name" /data
    # Use no TCP port: another server on this machine may have it.
    chroot --userspec="$name" "$result" /bin/sh -c "cd /data; exec docker-entrypoint.sh $command \
        --port 0 --unixsocket /data/sock" >"$tools/images-server.log" 2>&1 &
    pid=$!
    for i in {1..100}; do
        [ "$("$cli" -s "$result/data/sock" ping 2>/dev/null)" != PONG ] || break
        sleep 0.1
    done
    token=$("$cli" -s "$result/data/sock" rlock.acquire order:42 worker-1 || true)
    if [[ $token =~ ^[0-9]+$ ]] && [ -z "$("$cli" -s "$result/data/sock" rlock.acquire order:42 worker-2)" ]; then
        passed=$((passed + 1))
        say "$name-server $(server_version_in "$result" "$name"): all steps executed; it runs as $(stat -c "user %u" "/proc/$pid" 2>/dev/null)," \
            "appendfsync $("$cli" -s "$result/data/sock" config get appendfsync | tail -n 1), token $token"
    else
        failed=$((failed + 1))
        say "FAILED: no lock, $token"
        tail -n 5 "$tools/images-server.log"
    fi
    kill "$pid" && wait "$pid" || true
}

server_version_in() { chroot "$1" "$2-server" --version | sed -n 's/.* v=\([0-9][0-9.]*\).*/\1/p'; }

main "$@"
