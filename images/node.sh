#!/bin/sh
# Starts one member of a set that survives the death of any one server: `node.sh server`, `node.sh sentinel` or
# `node.sh serve`. compose.yaml and kubernetes-ha.yaml start it with these variables:
#
#   RLOCK_SELF       the address at which the others reach this member
#   RLOCK_SERVERS    all servers; at the very first start, the first one in the list is the primary
#   RLOCK_SENTINELS  all Sentinels
#   RLOCK_NODE_PASSWORD, RLOCK_APP_PASSWORD, RLOCK_OPERATOR_PASSWORD, RLOCK_METRICS_PASSWORD
#                    the passwords of the users node (the members, and you), app, operator and metrics
#
# The users are those of docs/operations.md.
set -eu
umask 077
name=locks
data=${RLOCK_DATA:-/data}

die() {
    echo "node.sh: $*" >&2
    exit 1
}

for password in "$RLOCK_NODE_PASSWORD" "$RLOCK_APP_PASSWORD" "$RLOCK_OPERATOR_PASSWORD" "$RLOCK_METRICS_PASSWORD"; do
    case $password in
        '' | *[!A-Za-z0-9._~+/=-]*) die 'a password is made of letters, digits and . _ ~ + / = -' ;;
    esac
done

hash() { printf %s "$1" | sha256sum | cut -d' ' -f1; }

# user NAME PASSWORD RULES: prints a line of an ACL.
user() { echo "user $1 on #$(hash "$2") $3"; }

sentinel_says() {
    REDISCLI_AUTH=$RLOCK_NODE_PASSWORD timeout 2 "$cli" --user node -h "$1" -p 26379 --raw sentinel "$2" $name 2>/dev/null
}

# Sets $primary, and $replicas to the number of its replicas that Sentinel has seen. A server that was the primary must
# not start as the primary again if another one has taken over.
find_primary() {
    primary='' replicas=0
    cli=$(command -v valkey-cli || command -v redis-cli)
    for sentinel in $RLOCK_SENTINELS; do
        primary=$(sentinel_says "$sentinel" get-master-addr-by-name | sed -n 1p) || true
        case $primary in
            '' | *' '*) primary='' ;; # nothing, or an error
            *)
                replicas=$(sentinel_says "$sentinel" master | sed -n '/^num-slaves$/{n;p;}') || true
                return
                ;;
        esac
    done
    primary=${RLOCK_SERVERS%% *}
}

server() {
    find_primary
    # Otherwise its replicas would copy an empty server, and every lock would be free.
    if [ "$primary" = "$RLOCK_SELF" ] && [ ! -e "$data/appendonlydir" ] && [ "${replicas:-0}" -gt 0 ]; then
        die 'this server was the primary, and its data is gone: another one must take over first'
    fi
    {
        echo 'user default off'
        user node "$RLOCK_NODE_PASSWORD" '~* &* +@all'
        user app "$RLOCK_APP_PASSWORD" '~app:* resetchannels &__keyspace@0__:app:* &__keyevent@*__:rlock.turn:* -@all +@connection -@dangerous +subscribe +unsubscribe +psubscribe +punsubscribe +wait +info +pttl +exists +rlock.acquire +rlock.release +rlock.renew +rlock.macquire +rlock.mrelease +rlock.mrenew +rlock.cancel +rlock.holds +rlock.check +rlock.await +rlock.info +rlock.place'
        user operator "$RLOCK_OPERATOR_PASSWORD" '~* resetchannels &__key*__:* -@all +@connection -@dangerous +psubscribe +info +time +scan +client|list +client|kill +client|unblock +slowlog|get +module|list +rlock.force +rlock.cancel +rlock.holds +rlock.check +rlock.info +rlock.place +rlock.queues +rlock.slowlog (~runbook:* -@all +rlock.acquire +rlock.release)'
        user metrics "$RLOCK_METRICS_PASSWORD" 'resetchannels -@all +@connection -@dangerous +info +rlock.queues'
    } >"$data/users.acl"
    # A reply with a token means that a replica has the grant, and a primary that is cut off from its replicas stops
    # granting after at most twelve seconds. With two replicas, locks are still granted while any one server is down.
    {
        echo 'include /etc/rlock/server.conf'
        printf '%s\n' "dir $data" "aclfile $data/users.acl" 'protected-mode no' "replica-announce-ip $RLOCK_SELF" \
            'masteruser node' "masterauth $RLOCK_NODE_PASSWORD" 'min-replicas-to-write 1' 'min-replicas-max-lag 10' \
            'rlock.acks 1'
        [ "$primary" = "$RLOCK_SELF" ] || echo "replicaof $primary 6379"
    } >"$data/node.conf"
    exec docker-entrypoint.sh "$data/node.conf"
}

# Sentinel writes its state into its configuration file, which is therefore created only once.
sentinel() {
    conf=$data/sentinel.conf
    if [ ! -e "$conf" ]; then
        set -- $RLOCK_SENTINELS
        clients='resetchannels allchannels -@all +@connection +subscribe +psubscribe +unsubscribe +punsubscribe +info +role +sentinel|get-master-addr-by-name +sentinel|master +sentinel|masters +sentinel|replicas +sentinel|slaves +sentinel|sentinels +sentinel|myid'
        {
            printf '%s\n' 'sentinel resolve-hostnames yes' 'sentinel announce-hostnames yes' \
                "sentinel announce-ip $RLOCK_SELF" "sentinel monitor $name ${RLOCK_SERVERS%% *} 6379 $(($# / 2 + 1))" \
                "sentinel auth-user $name node" "sentinel auth-pass $name $RLOCK_NODE_PASSWORD" \
                'sentinel sentinel-user node' "sentinel sentinel-pass $RLOCK_NODE_PASSWORD" \
                "sentinel down-after-milliseconds $name 5000" "sentinel failover-timeout $name 10000" \
                'protected-mode no' 'user default off'
            user node "$RLOCK_NODE_PASSWORD" '~* &* +@all'
            user app "$RLOCK_APP_PASSWORD" "$clients"
            user operator "$RLOCK_OPERATOR_PASSWORD" "$clients"
            user metrics "$RLOCK_METRICS_PASSWORD" "$clients"
        } >"$conf.part"
        mv "$conf.part" "$conf"
    fi
    exec docker-entrypoint.sh "$conf" --sentinel --port 26379
}

# Serves the page and the metrics of whichever server is the primary.
serve() {
    set -- --sentinel $name
    for sentinel in $RLOCK_SENTINELS; do
        set -- "$@" --url "redis://operator@$sentinel:26379"
    done
    export REDISCLI_AUTH="$RLOCK_OPERATOR_PASSWORD"
    exec rlock serve --listen 0.0.0.0:9121 "$@"
}

case ${1-} in
    server | sentinel | serve) "$1" ;;
    *) die 'say server, sentinel or serve' ;;
esac
