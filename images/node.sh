#!/bin/sh
# Starts one member of a set that survives the death of any one server: `node.sh server`, `node.sh sentinel` or
# `node.sh serve`. compose.yaml and kubernetes-ha.yaml start it with these variables:
#
#   RLOCK_SELF       the address at which the others reach this member
#   RLOCK_SERVERS    all servers; at the very first start, the first one in the list is the primary
#   RLOCK_SENTINELS  all Sentinels
#   RLOCK_NODE_PASSWORD, RLOCK_APP_PASSWORD, RLOCK_OPERATOR_PASSWORD, RLOCK_METRICS_PASSWORD
#                    the passwords of the users node (the members, and you), app, operator and metrics; `serve` needs
#                    only that of operator
#   RLOCK_MAXMEMORY  the server's maxmemory; 0 or nothing: no limit
#   RLOCK_DATA       the folder for the data, if not /data
#   RLOCK_SETTINGS   the settings of all servers, among them `loadmodule`, if not /etc/rlock/server.conf
#
# Without containers, each server and each Sentinel needs a machine of its own, with the server's programs in the PATH.
#
# The users are those of docs/operations.md.
#
# Which server may be the primary:
#
# 1. Only the server that the Sentinels name. A server asks them before it starts, and waits until a majority of those
#    listed has answered. It believes the answer about the newest failover (the greatest config-epoch). Sometimes the
#    Sentinels voted for a failover, and none of those that answer knows its outcome. Then the server waits for all of
#    them, with two exceptions: the server that they name is the one that it followed last, or it has certainly followed
#    no server since an older failover. In both cases, the primary grants nothing until two things are true: another
#    server follows it, which proves that the failover confirmed nothing, and a majority of the Sentinels knows it under
#    a greater number, so that an absent Sentinel that knows the outcome comes too late.
# 2. A Sentinel without its state knows nothing and does not answer. It takes the state of a majority of the others. If
#    that is not possible, it must reach all members. It then names the primary that all servers follow or, if all
#    servers are empty (the very first start), the first one in the list.
# 3. If a server finds that all others are running and follow one of them, it follows that one, too. If a Sentinel knows
#    of another primary, that comes from a failover that confirmed nothing.
# 4. A server that the Sentinels name, but whose data is gone, waits until another one has taken over.
# 5. Sentinel does not promote a replica before it has received and saved everything since its start: until then, its
#    replica-priority is 0.
#
# A member that waits writes the reason to its log. `node.sh promote`, in the container of a server, makes that server
# the primary if nothing else can. Locks that its files lack are lost (docs/high-availability.md).
set -eu
umask 077
name=locks
data=${RLOCK_DATA:-/data}
settings=${RLOCK_SETTINGS:-/etc/rlock/server.conf}
# The mebibytes that must fit on the disk before a server starts.
room=16
# A number that is greater than that of the replicas.
unreachable=99

die() {
    echo "node.sh: $*" >&2
    exit 1
}

# The server runs as its own user, and could not read what root writes here.
case ${1-} in
    server | sentinel | promote)
        [ "$(id -u)" != 0 ] || [ "$(stat -c %u "$data")" = 0 ] || die "run this as the user who owns $data, $(stat -c %u "$data"), not as root"
        ;;
esac

check_password() {
    case $1 in
        '' | *[!A-Za-z0-9._~+/=-]*) die 'a password is made of letters, digits and . _ ~ + / = -' ;;
    esac
}
check_password "$RLOCK_OPERATOR_PASSWORD"
# Browsers can reach the page, so it gets no other password.
if [ "${1-}" != serve ]; then
    check_password "$RLOCK_NODE_PASSWORD"
    check_password "$RLOCK_APP_PASSWORD"
    check_password "$RLOCK_METRICS_PASSWORD"
fi

# A member that does not recognize itself in the list would follow itself.
case ${1-} in
    server) listed=$RLOCK_SERVERS ;;
    sentinel) listed=$RLOCK_SENTINELS ;;
    *) listed=${RLOCK_SELF-} ;;
esac
case " $listed " in
    *" ${RLOCK_SELF-} "*) ;;
    *) die "RLOCK_SELF is ${RLOCK_SELF-}, and must be one of: $listed" ;;
esac

hash() { printf %s "$1" | sha256sum | cut -d' ' -f1; }

# user NAME PASSWORD RULES: prints a line of an ACL.
user() { echo "user $1 on #$(hash "$2") $3"; }

# ask USER ADDRESS PORT [WORD...]: sends these words. Without words, it sends the lines of the standard input.
ask() {
    who=$1 where=$2 port=$3
    shift 3
    REDISCLI_AUTH=$RLOCK_NODE_PASSWORD timeout 3 "$cli" --user "$who" -h "$where" -p "$port" --raw "$@" 2>/dev/null |
        tr -d '\r' || true
}
cli=$(command -v valkey-cli || command -v redis-cli)
# Only images have an entrypoint.
start=$(command -v docker-entrypoint.sh || command -v valkey-server || command -v redis-server)

# says WORD ADDRESS PORT: whether the server or Sentinel at that address has a user named WORD.
says() { [ "$(ask "$1" "$2" "$3" ping </dev/null)" = PONG ]; }

# after WORD: the line of the standard input that follows this one.
after() { sed -n "/^$1\$/{n;p;q;}"; }

# pause REASON: writes the reason to the log if it is a new one, and waits for a second.
reason=
pause() {
    [ "$1" = "$reason" ] || echo "node.sh: waiting: $1" >&2
    reason=$1
    sleep 1
}

# Lets the others know that this member has no data or state. Until it knows more, an empty server or Sentinel answers
# in its place: its only user is `empty`, which may only send PING.
shown=
show_empty() {
    [ -z "$shown" ] || return 0
    {
        printf '%s\n' 'user default off' 'protected-mode no' 'loglevel warning' "dir $data"
        [ "$1" = sentinel ] || printf '%s\n' 'save ""' 'appendonly no'
        user empty "$RLOCK_NODE_PASSWORD" '-@all +ping'
    } >"$data/empty.conf"
    if [ "$1" = sentinel ]; then
        "$start" "$data/empty.conf" --sentinel --port 26379 &
    else
        "$start" "$data/empty.conf" &
    fi
    shown=$!
}

hide_empty() {
    [ -n "$shown" ] || return 0
    kill -9 "$shown" 2>/dev/null || true
    wait "$shown" || true
    shown=
}
trap 'hide_empty; exit 143' TERM INT

# Asks all Sentinels, and sets these variables:
#   $answers  the number of Sentinels that know a primary
#   $epoch    the number of the newest failover that they know
#   $primary  the primary, according to most of the Sentinels that know that failover; $naming is their number
#   $split    the servers that they name, if they name more than one
#   $vote     the newest failover for which a Sentinel voted
#   $silent   the Sentinels without an answer
#   $down     yes if a Sentinel considers the primary dead; replacing if one is promoting another server
# The address is asked for twice. If it did not change in between, it belongs to the epoch.
ask_sentinels() {
    primary='' epoch=-1 vote=0 answers=0 count=0 named='' naming=0 split='' silent='' down=no
    for sentinel in $RLOCK_SENTINELS; do
        count=$((count + 1))
        where_is="sentinel get-master-addr-by-name $name"
        reply=$(printf '%s\n' "$where_is" "sentinel master $name" "$where_is" | ask node "$sentinel" 26379)
        its_primary=$(echo "$reply" | sed -n 1p)
        its_epoch=$(echo "$reply" | after config-epoch)
        its_vote=''
        # A question about epoch 0 is not a request for a vote: the reply contains the last vote. An error contains no
        # epoch.
        [ -z "$its_epoch" ] ||
            its_vote=$(ask node "$sentinel" 26379 sentinel is-master-down-by-addr "$its_primary" 6379 0 "$name" </dev/null | sed -n 3p)
        if [ -z "$its_vote" ] || [ "$its_primary" != "$(echo "$reply" | tail -n 2 | sed -n 1p)" ]; then
            silent="$silent $sentinel"
            continue
        fi
        answers=$((answers + 1))
        case $(echo "$reply" | after flags) in
            *failover_in_progress*) down=replacing ;;
            *_down*) [ $down = replacing ] || down=yes ;;
        esac
        [ "$its_vote" -le "$vote" ] || vote=$its_vote
        if [ "$its_epoch" -gt "$epoch" ]; then
            epoch=$its_epoch named=$its_primary
        elif [ "$its_epoch" -eq "$epoch" ]; then
            named="$named $its_primary"
        fi
    done
    for server in $named; do
        # shellcheck disable=SC2086 # one line each
        alike=$(printf '%s\n' $named | grep -cxF "$server")
        [ "$alike" -le "$naming" ] || primary=$server naming=$alike
        [ "$server" = "${named%% *}" ] || split=$named
    done
    majority=$((count / 2 + 1))
}

# A number that is greater than anything that an absent Sentinel may know.
newest() {
    now=$(date +%s)
    [ "$now" -gt "$epoch" ] || now=$((epoch + 1))
    [ "$now" -gt "$vote" ] || now=$((vote + 1))
    echo "$now"
}

# tell SENTINEL PRIMARY NUMBER: has the Sentinel watch this primary from now on, as if another Sentinel had announced a
# failover to it.
tell() {
    peer=$(ask node "$1" 26379 sentinel sentinels "$name" </dev/null)
    [ -n "$peer" ] || return 0
    peer=$(echo "$peer" | after ip),$(echo "$peer" | after port),$(echo "$peer" | after runid)
    printf '%s\n' "publish __sentinel__:hello $peer,$3,$name,$2,6379,$3" 'sentinel flushconfig' | ask node "$1" 26379 >/dev/null
}

# --- a server

# A server whose append-only file has no manifest starts empty, whatever other files the folder has.
has_data() {
    for manifest in "$data"/appendonlydir/*.manifest; do
        [ ! -s "$manifest" ] || return 0
    done
    return 1
}

# A server that cannot write must not come back as the primary, because it would end again, and Sentinel would promote
# no other server.
can_write() {
    head -c $((room * 1048576)) /dev/urandom | dd "of=$data/room" bs=65536 conv=fsync 2>/dev/null
    written=$(wc -c <"$data/room" || echo 0)
    rm -f "$data/room"
    [ "$written" -eq $((room * 1048576)) ]
} 2>/dev/null

# The server that this one followed last; itself if it was the primary. Sentinel has the server save each change.
last_primary() {
    [ -e "$data/node.conf" ] || return 0
    followed=$(sed -n 's/^replicaof "\{0,1\}\([^ "]*\)"\{0,1\} .*/\1/p' "$data/node.conf")
    echo "${followed:-$RLOCK_SELF}"
}

# Whether this server has followed no other since it started, and started before the failover that the Sentinels know.
# In that case, the Sentinels have changed nothing in its configuration, because the server would have written the
# change to its file.
is_older() {
    [ -e "$data/node.conf" ] && ! grep -q 'Generated by CONFIG REWRITE' "$data/node.conf" || return 1
    at_start=$(sed -n 's/^# config-epoch //p' "$data/node.conf")
    [ -n "$at_start" ] && [ "$at_start" -lt "$epoch" ]
}

# servers_agree [SERVER]: whether all servers, without SERVER, are running and follow the same one. Sets $leader to that
# server, and $followers to the number of its replicas.
servers_agree() {
    leader='' followers=0
    for server in $RLOCK_SERVERS; do
        [ "$server" != "${1-}" ] || continue
        state=$(ask node "$server" 6379 info replication </dev/null)
        case $state in
            *role:master*) its_leader=$server ;;
            *master_link_status:up*) its_leader=$(echo "$state" | sed -n 's/^master_host://p') followers=$((followers + 1)) ;;
            *) return 1 ;;
        esac
        [ "${leader:=$its_leader}" = "$its_leader" ] || return 1
    done
}

# Whether the Sentinels voted for a failover whose outcome none of those that answer knows, or disagree about a
# failover. Sets $doubt.
is_open() {
    doubt='voted for another one since, and do not know the outcome'
    [ -z "$split" ] || doubt="do not agree: $split"
    [ -n "$split" ] || { [ "$vote" -gt "$epoch" ] && [ "$answers" -lt "$count" ]; } && ! nobody_has_data
}

# Whether this server may have been part of the failover that is in doubt.
is_uncertain() { is_open && [ "$primary" != "$was" ] && ! is_older; }

# Whether another server was part of the failover that is in doubt: that server is running, and it is, or follows,
# another primary. The Sentinels only promote a server that is running.
is_contradicted() {
    [ "$primary" = "$RLOCK_SELF" ] && is_open || return 1
    for server in $RLOCK_SERVERS; do
        [ "$server" != "$RLOCK_SELF" ] || continue
        state=$(ask node "$server" 6379 info replication </dev/null)
        case $state in
            *role:master*) return 0 ;;
            *role:slave*) [ "$(echo "$state" | sed -n 's/^master_host://p')" = "$primary" ] || return 0 ;;
        esac
    done
    return 1
}

# Whether all other servers are running, and follow one of them. If this server had confirmed anything that they lack,
# one of them would have followed it, and would now wait. This server has no replica, so it confirms nothing, whatever a
# returning Sentinel says.
others_agree() { servers_agree "$RLOCK_SELF" && [ "$followers" -gt 0 ]; }

others_are_empty() {
    for server in $RLOCK_SERVERS; do
        [ "$server" = "$RLOCK_SELF" ] || says empty "$server" 6379 || [ "$(ask node "$server" 6379 dbsize </dev/null)" = 0 ] || return 1
    done
}

# At the very first start there is nothing to lose, even if the Sentinels have voted in the meantime.
nobody_has_data() { ! has_data && others_are_empty; }

# Whether the Sentinels may be replacing this primary. If they consider it dead, they begin to replace it within about
# two seconds, or they cannot.
is_being_replaced() {
    [ "$primary" = "$RLOCK_SELF" ] && has_data || return 1
    case $down in
        replacing) ;;
        yes) [ "$patience" -gt 0 ] ;;
        no) return 1 ;;
    esac
}

# Returns once this server knows the primary, in $primary. $is_proven says whether it may grant at once.
find_primary() {
    patience=5 is_promoted=no is_proven=yes
    was=$(last_primary)
    # This order was meant for an earlier start.
    rm -f "$data/promote"
    until can_write; do
        hide_empty
        pause "$data has no room for $room MiB, or is not writable: this server would end at its first write. Another one takes over"
    done
    while :; do
        ask_sentinels
        if [ -e "$data/promote" ]; then
            primary=$RLOCK_SELF epoch=$(newest) is_promoted=yes is_proven=no
            rm "$data/promote"
            break
        elif [ "$answers" -lt "$majority" ]; then
            has_data || show_empty server
            pause "$answers of $count Sentinels know a primary, and $majority must. Without an answer:$silent"
        elif { [ "$primary" = "$RLOCK_SELF" ] || [ -n "$split" ] || is_uncertain; } && others_agree; then
            primary=$leader
            break
        elif [ -n "$split" ] && [ "$naming" -lt "$majority" ]; then
            pause "the Sentinels name different servers after the same failover: $split. Without an answer:$silent"
        elif is_uncertain; then
            pause "the Sentinels name $primary, but $doubt. Without an answer:$silent"
        elif is_contradicted; then
            pause "the Sentinels name this server, but $doubt. And $server follows another one. Without an answer:$silent"
        elif is_being_replaced; then
            patience=$((patience - 1))
            pause 'this server was the primary, and the Sentinels consider it dead: they may promote another one'
        elif [ "$primary" = "$RLOCK_SELF" ] && ! has_data && ! others_are_empty; then
            hide_empty
            pause 'this server was the primary, and its data is gone: another one must take over first'
        else
            [ "$primary" != "$RLOCK_SELF" ] || ! is_open || is_proven=no
            break
        fi
    done
    hide_empty
    echo "node.sh: the primary is $primary (config-epoch $epoch, according to $answers of $count Sentinels)" >&2
}

# Lets Sentinel promote this replica once it has everything, also on its disk: after a full sync, the append-only file
# is complete only when it has been rewritten. The function ends with the server, whose process ID is that of this
# script.
follow() {
    while kill -0 $$ 2>/dev/null; do
        state=$(printf 'info replication\ninfo persistence\n' | ask node "$RLOCK_SELF" 6379)
        case $state in
            *role:master* | *master_link_status:up*aof_rewrite_in_progress:0*aof_rewrite_scheduled:0*aof_last_bgrewrite_status:ok*)
                if [ "$(ask node "$RLOCK_SELF" 6379 config set replica-priority 100 </dev/null)" = OK ]; then
                    echo "node.sh: Sentinel may promote this server: it has everything" >&2
                    return
                fi
                ;;
        esac
        pause "Sentinel may not promote this replica before it has received everything from $primary, and saved it"
    done
}

# Runs beside a primary that you have promoted, or whose Sentinels do not know the outcome of a failover. This primary
# grants nothing until a majority of them knows it under a number that is greater than those of absent Sentinels. Unless
# you have promoted it, another server must follow it first.
prove() {
    number=
    while kill -0 $$ 2>/dev/null; do
        state=$(ask node "$RLOCK_SELF" 6379 info replication </dev/null)
        ask_sentinels
        is_named=no
        [ "$primary" != "$RLOCK_SELF" ] || [ "$naming" -lt "$majority" ] || is_named=yes
        case $is_promoted$is_named$state in
            *role:slave*) break ;;
            yesyes*role:master*) [ "$epoch" -lt "${number:-$(newest)}" ] || break ;;
            noyes*role:master*) is_open || break ;;
        esac
        why="$majority of $count Sentinels must know that it is the primary"
        case $is_promoted$down$state in
            noreplacing*) ;;
            yes*role:master* | no*role:master*state=online*)
                number=$(newest)
                for sentinel in $RLOCK_SENTINELS; do
                    tell "$sentinel" "$RLOCK_SELF" "$number"
                done
                ;;
            no*) why='the Sentinels voted for another one since, so another server must follow this one' ;;
        esac
        pause "this server is the primary, but grants nothing yet: $why. Without an answer:$silent"
    done
    ask node "$RLOCK_SELF" 6379 config set min-replicas-to-write 1 </dev/null >/dev/null
    echo 'node.sh: min-replicas-to-write is 1 again' >&2
}

server() {
    find_primary
    {
        echo 'user default off'
        user node "$RLOCK_NODE_PASSWORD" '~* &* +@all'
        [ "$is_promoted" = no ] || user promoted "$RLOCK_NODE_PASSWORD" '-@all +ping'
        user app "$RLOCK_APP_PASSWORD" '~app:* resetchannels &__keyspace@0__:app:* &__keyevent@*__:rlock.turn:* &rlock:tell:* -@all +@connection -@dangerous +ssubscribe +sunsubscribe +subscribe +unsubscribe +psubscribe +punsubscribe +wait +info +pttl +exists +rlock.acquire +rlock.release +rlock.renew +rlock.macquire +rlock.mrelease +rlock.mrenew +rlock.cancel +rlock.holds +rlock.check +rlock.await +rlock.info +rlock.place'
        user operator "$RLOCK_OPERATOR_PASSWORD" '~* resetchannels &__key*__:* -@all +@connection -@dangerous +psubscribe +info +time +scan +client|list +client|kill +client|unblock +slowlog|get +module|list +rlock.release +rlock.force +rlock.take +rlock.cancel +rlock.holds +rlock.check +rlock.info +rlock.place +rlock.queues +rlock.slowlog (~runbook:* -@all +rlock.acquire)'
        user metrics "$RLOCK_METRICS_PASSWORD" 'resetchannels -@all +@connection -@dangerous +info +rlock.queues'
    } >"$data/users.acl"
    needed=1
    [ $is_proven = yes ] || needed=$unreachable
    # A reply with a token means that a replica has the grant. A primary that is cut off from its replicas stops
    # granting after at most twelve seconds. With two replicas, locks are still granted while any one server is down.
    {
        echo "# config-epoch $epoch"
        echo "include $settings"
        printf '%s\n' "dir $data" "aclfile $data/users.acl" 'protected-mode no' "replica-announce-ip $RLOCK_SELF" \
            'masteruser node' "masterauth $RLOCK_NODE_PASSWORD" "min-replicas-to-write $needed" 'min-replicas-max-lag 10' \
            'rlock.acks 1' "maxmemory ${RLOCK_MAXMEMORY:-0}"
        [ "$primary" = "$RLOCK_SELF" ] || printf '%s\n' "replicaof $primary 6379" 'replica-priority 0'
    } >"$data/node.conf.part"
    mv "$data/node.conf.part" "$data/node.conf"
    if [ "$primary" != "$RLOCK_SELF" ]; then
        follow &
    elif [ $is_proven = no ]; then
        prove &
    fi
    exec "$start" "$data/node.conf"
}

# --- the page

# Serves the page and the metrics of whichever server is the primary.
serve() {
    set -- --sentinel $name
    for sentinel in $RLOCK_SENTINELS; do
        set -- "$@" --url "redis://operator@$sentinel:26379"
    done
    export REDISCLI_AUTH="$RLOCK_OPERATOR_PASSWORD"
    exec rlock serve --listen 0.0.0.0:9121 "$@"
}

# --- beside a server that runs or waits

# Whether the next server may be restarted: either this one is the primary, or it has everything and may be promoted.
ready() {
    state=$(REDISCLI_AUTH=$RLOCK_METRICS_PASSWORD "$cli" --user metrics -h "$RLOCK_SELF" -e rlock.queues count 1) || die "$state"
    state=$(ask node "$RLOCK_SELF" 6379 info replication </dev/null)
    case $state in
        *role:master*) ;;
        *slave_priority:0*) die 'this replica has not received and saved everything since its start' ;;
        *master_link_status:up*) ;;
        *) die 'the link to the primary is down' ;;
    esac
}

promote_running() {
    printf '%s\n' 'config set replica-priority 100' "config set min-replicas-to-write $unreachable" 'replicaof no one' 'config rewrite' \
        "acl setuser promoted on #$(hash "$RLOCK_NODE_PASSWORD") -@all +ping" | ask node "$RLOCK_SELF" 6379 >/dev/null
    is_promoted=yes
    prove
}

# Makes this server the primary, although nothing proves that it has every lock.
promote() {
    ask_sentinels
    for server in $RLOCK_SERVERS; do
        [ "$server" != "$RLOCK_SELF" ] || continue
        case $(ask node "$server" 6379 info replication </dev/null) in
            *role:master*) die "$server is the primary, and this server would copy it: stop it, and start it again when this one has taken over" ;;
        esac
        has_data || case $(ask node "$server" 6379 dbsize </dev/null) in
            0 | *[!0-9]* | '') ;;
            *) die "this server has no data, and $server has: promote that one" ;;
        esac
    done
    # A waiting server notices the file soon, but Sentinels that do not answer take three seconds each. The file is
    # removed after a minute, so that no later start finds it.
    limit=$(($(date +%s) + 60))
    : >"$data/promote"
    while [ -e "$data/promote" ]; do
        state=$(ask node "$RLOCK_SELF" 6379 info replication </dev/null)
        case $state in
            *role:*)
                rm -f "$data/promote"
                promote_running
                ;;
            *)
                [ "$(date +%s)" -lt "$limit" ] || ! rm "$data/promote" 2>/dev/null ||
                    die "nothing waits here to become the primary: look into this server's log"
                sleep 1
                ;;
        esac
    done
    echo "node.sh: $RLOCK_SELF becomes the primary. Locks that its files lack are lost: other owners can get them"
}

# shellcheck source=images/sentinel.sh
. "${0%/*}/sentinel.sh"

case ${1-} in
    server | sentinel | serve | ready | promote) "$1" ;;
    *) die 'the first word must be server, sentinel, serve, ready or promote' ;;
esac
