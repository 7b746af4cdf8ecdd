#!/bin/bash
# Tests the life of the package together with one server, in a freshly booted Debian: it is installed, enabled, used
# under the unit's own hardening, upgraded and removed. Usage: `try.sh redis|valkey`; the packages are /old.deb and
# /new.deb. The script prints what it finds, and ends at the first thing that is wrong.
set -euo pipefail

name=$1
unit=$name-server
conf=/etc/$name/$name.conf
module=/usr/lib/rlock/librlock.so
at=install

cli() { "$name-cli" "$@"; }
say() { printf '%s %s: %s\n' "$name" "$at" "$*"; }
wrong() {
    say "WRONG: $*"
    journalctl -u "$unit" --no-pager -n 5 || true
    tail -n 5 /var/log/"$name"/*.log || true
    exit 1
}
answers() {
    local tries
    for tries in {1..100}; do
        [ "$(cli ping 2>/dev/null)" != PONG ] || return 0
        sleep 0.1
    done
    wrong 'the server does not answer'
}
restart() {
    systemctl reset-failed "$unit" 2>/dev/null || true
    systemctl restart "$unit" || wrong "systemctl restart $unit"
    answers
}
# The server must fail to start. (Its unit would try again and again.)
fails_to_start() {
    systemctl stop "$unit"
    systemctl reset-failed "$unit" 2>/dev/null || true
    systemctl start "$unit" >/dev/null 2>&1 || true
    local tries
    for tries in {1..50}; do
        # It failed at least once.
        [ "$(systemctl show -p NRestarts --value "$unit")" = 0 ] || break
        sleep 0.1
    done
    [ "$(cli ping 2>/dev/null || true)" != PONG ] || wrong "it started, though $1"
    systemctl stop "$unit"
}
apt() { DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes "$@" 2>&1; }

systemctl start "$unit"
answers
before=$(sha256sum <"$conf")
apt install /old.deb >/tmp/log || wrong "$(cat /tmp/log)"
answers
[ "$(sha256sum <"$conf")" = "$before" ] || wrong "$conf was changed"
[[ $(cli rlock.help 2>&1) == *'unknown command'* ]] || wrong 'the module is active before it was asked for'
say "installed, $(dpkg-query -W -f '${Version} of ${Architecture}' rlock), and $unit $("$unit" --version | grep -o 'v=[^ ]*') is as it was"

at=activate
cli set other data >/dev/null
cli config set appendonly yes >/dev/null
until [ "$(cli info persistence | grep -c 'aof_rewrite_in_progress:0\|aof_rewrite_scheduled:0')" = 2 ]; do sleep 0.1; done
printf '%s\n' "loadmodule $module" 'include /etc/rlock/rlock.conf' >>"$conf"
restart
[ "$(cli get other)" = data ] || wrong 'the data are gone'
token=$(cli rlock.acquire order:42 worker-1 lease 600000)
[ "$token" -gt 0 ] || wrong "no lock: $token"
[ -z "$(cli rlock.acquire order:42 worker-2)" ] || wrong 'two hold one lock'
say "two lines, a restart: token $token; appendfsync $(cli config get appendfsync | tail -n 1)"
cli config rewrite >/dev/null
restart
[ "$(cli rlock.holds order:42 worker-1)" = 1 ] || wrong 'the lock is lost after CONFIG REWRITE'
say 'CONFIG REWRITE, a restart: the lock is there'

at=hardening
shown=$(systemctl show -p NoExecPaths -p ExecPaths -p MemoryDenyWriteExecute "$unit" | paste -sd' ')
[[ $shown == *NoExecPaths=/\ * ]] || wrong "the unit is not hardened: $shown"
say "$shown"
install -D -m 755 "$module" /usr/local/lib/rlock/librlock.so
sed -i "s,^loadmodule $module,loadmodule /usr/local/lib/rlock/librlock.so," "$conf"
fails_to_start 'its module is below /usr/local'
say "below /usr/local: $(grep -ho 'failed to map.*\|Operation not permitted' /var/log/"$name"/*.log | tail -n 1), it does not start"
sed -i "s,^loadmodule /usr/local/lib/rlock/librlock.so,loadmodule $module," "$conf"
rm -r /usr/local/lib/rlock
restart
[ "$(cli rlock.holds order:42 worker-1)" = 1 ] || wrong 'the lock is lost'

at=serve
[ "$(systemctl is-active rlock-serve)" = inactive ] || wrong 'the package started rlock-serve'
systemctl enable --now rlock-serve >/tmp/log 2>&1 || wrong "$(cat /tmp/log)"
# get PATH: fetches it over HTTP, without a separate program.
get() {
    exec 3<>/dev/tcp/127.0.0.1/9121 || return 1
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" >&3
    tr -d '\r' <&3
    exec 3>&-
}
for tries in {1..50}; do
    ! get /metrics 2>/dev/null | grep -q '^rlock_locks{.*} 1' || break
    sleep 0.1
done
get /metrics >/tmp/metrics
grep -q '^rlock_up{server="127.0.0.1:6379"} 1' /tmp/metrics || wrong "rlock-serve: $(head -n 30 /tmp/metrics; journalctl -u rlock-serve --no-pager -n 5)"
grep -q '^rlock_locks{.*} 1' /tmp/metrics || wrong 'the metrics have no lock'
get / | grep -qi '<html' || wrong 'there is no page'
[[ $(rlock who order:42) == *worker-1* ]] || wrong "rlock who: $(rlock who order:42 2>&1)"
serve=$(systemctl show -p MainPID --value rlock-serve)
user=$(stat -c %u "/proc/$serve")
[ "$user" -ge 61184 ] && [ "$user" -le 65519 ] || wrong "rlock-serve runs as $user"
[ "$(stat -c %a /etc/rlock/serve.env)" = 640 ] || wrong 'others may read serve.env'
for page in 1 7; do gzip --test "/usr/share/man/man$page/rlock.$page.gz" || wrong "no man $page rlock"; done
systemd-analyze verify --man=no rlock-serve.service 2>/tmp/log || wrong "$(cat /tmp/log)"
! grep -q rlock-serve /tmp/log || wrong "$(cat /tmp/log)"
exposure=$(systemd-analyze security --no-pager rlock-serve.service | sed -n 's/.*Overall exposure level for .*: //p')
say "rlock-serve, as user $user: $(grep -c '^rlock_' /tmp/metrics) metrics, the page; exposure $exposure"

at=upgrade
echo '# mine' >>/etc/rlock/rlock.conf
pid=$(systemctl show -p MainPID --value "$unit")
apt -o Dpkg::Options::=--force-confdef install /new.deb >/tmp/log || wrong "$(cat /tmp/log)"
[ "$(systemctl show -p MainPID --value "$unit")" = "$pid" ] || wrong 'the server was restarted'
[ "$(cli rlock.holds order:42 worker-1)" = 1 ] || wrong 'the lock is lost'
new=$(systemctl show -p MainPID --value rlock-serve)
[ "$new" != 0 ] && [ "$new" != "$serve" ] || wrong 'rlock-serve was not restarted'
grep -q '^# mine' /etc/rlock/rlock.conf || wrong 'settings of the administrator are lost'
grep -q 'after their next restart' /tmp/log || wrong 'it does not say that a restart is due'
restart
[ "$(cli rlock.holds order:42 worker-1)" = 1 ] || wrong 'the lock is lost'
[ -z "$(cli rlock.acquire order:42 worker-2)" ] || wrong 'two hold one lock'
[ "$(cli rlock.acquire order:42 worker-1 depth 1)" = "$token" ] || wrong 'another token'
say "now $(dpkg-query -W -f '${Version}' rlock); the server went on until it was restarted, the lock and its token are there"

at=remove
apt remove rlock >/tmp/log || wrong "$(cat /tmp/log)"
grep -q "rlock:   $conf" /tmp/log || wrong 'it does not warn'
[ "$(systemctl is-active rlock-serve)" != active ] || wrong 'rlock-serve goes on'
fails_to_start 'its module is gone'
say 'without the steps: it warned, and the server does not start'
apt install /new.deb >/tmp/log || wrong "$(cat /tmp/log)"
restart
[ "$(cli rlock.holds order:42 worker-1)" = 1 ] || wrong 'the lock is lost'
say 'installed again: the lock is there'
# The steps that the README and the man page describe.
cli del order:42 >/dev/null
cli bgrewriteaof >/dev/null
until [ "$(cli info persistence | grep -c 'aof_rewrite_in_progress:0\|aof_rewrite_scheduled:0')" = 2 ]; do sleep 0.1; done
sed -i '/librlock\.so/d; /rlock\.conf/d; /^notify-keyspace-events/d; /^rlock\./d' "$conf"
restart
apt remove rlock >/tmp/log || wrong "$(cat /tmp/log)"
! grep -q 'rlock:  ' /tmp/log || wrong 'it warns of nothing'
restart
[ "$(cli get other)" = data ] || wrong 'the data are gone'
[[ $(cli rlock.help 2>&1) == *'unknown command'* ]] || wrong 'the module is still there'
apt purge rlock >/tmp/log || wrong "$(cat /tmp/log)"
stayed=$(find / -xdev -name '*rlock*' ! -path '*pcrlock*' ! -name 'rlock-try*' ! -path '/proc/*')
[ -z "$stayed" ] || wrong "this stayed: $stayed"
say 'with the steps: the server starts, the other data are there, nothing of rlock is left'
systemctl stop "$unit"
