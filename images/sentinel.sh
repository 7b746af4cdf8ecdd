# shellcheck shell=sh
# A Sentinel's part of node.sh, which reads this file.

# Sets $primary to the server that you have promoted, if there is one.
find_promoted() {
    for server in $RLOCK_SERVERS; do
        says promoted "$server" 6379 || continue
        case $(ask node "$server" 6379 info replication </dev/null) in
            *role:master*) primary=$server && return ;;
        esac
    done
    return 1
}

# Whether all servers are empty, and each Sentinel knows a primary or is empty.
all_are_empty() {
    for server in $RLOCK_SERVERS; do
        says empty "$server" 6379 || return 1
    done
    for sentinel in $silent; do
        says empty "$sentinel" 26379 || return 1
    done
}

# Whether all servers are running and follow the same one, and each Sentinel knows a primary or is empty.
all_servers_agree() {
    servers_agree || return 1
    for sentinel in $silent; do
        says empty "$sentinel" 26379 || return 1
    done
}

# Returns once this Sentinel, which has no state, knows which server to watch: $primary, with the numbers of the last
# failover and of the last vote.
find_state() {
    while :; do
        ask_sentinels
        if [ "$answers" -ge "$majority" ] && [ "$vote" -le "$epoch" ] && [ -z "$split" ]; then
            break
        elif find_promoted; then
            epoch=$(newest) vote=0
            break
        elif all_are_empty; then
            [ "$answers" -gt 0 ] || primary=${RLOCK_SERVERS%% *} epoch=0
            break
        elif all_servers_agree; then
            [ "$vote" -le "$epoch" ] || epoch=$vote
            primary=$leader epoch=$((epoch + 1))
            break
        fi
        show_empty sentinel
        pause "this Sentinel has no state, and $answers others know a primary: $majority must, or all servers must follow the same one or be empty while all Sentinels answer. Without an answer:$silent"
    done
    hide_empty
    echo "node.sh: the primary is $primary (config-epoch $epoch)" >&2
}

# A Sentinel keeps the passwords and users that were in its file. This function replaces them at each start, because the
# passwords may have changed. It replaces the replicas, too, because a Sentinel otherwise learns of them from the
# primary, and could promote none if the primary is dead. A Sentinel that cannot resolve the servers' names writes the
# primary's name instead of each replica's, and does not start with such a file.
write_settings() {
    watched=$(sed -n "s/^sentinel monitor $name \([^ ]*\) .*/\1/p" "$conf")
    clients='resetchannels allchannels -@all +@connection +subscribe +psubscribe +unsubscribe +punsubscribe +info +role +sentinel|get-master-addr-by-name +sentinel|master +sentinel|masters +sentinel|replicas +sentinel|slaves +sentinel|sentinels +sentinel|myid'
    {
        grep -v -e '^user ' -e "^sentinel known-replica $name " -e "^sentinel auth-user $name " -e "^sentinel auth-pass $name " \
            -e '^sentinel sentinel-user ' -e '^sentinel sentinel-pass ' "$conf"
        for server in $RLOCK_SERVERS; do
            [ "$server" = "$watched" ] || echo "sentinel known-replica $name $server 6379"
        done
        printf '%s\n' "sentinel auth-user $name node" "sentinel auth-pass $name $RLOCK_NODE_PASSWORD" \
            'sentinel sentinel-user node' "sentinel sentinel-pass $RLOCK_NODE_PASSWORD" 'user default off'
        user node "$RLOCK_NODE_PASSWORD" '~* &* +@all'
        user app "$RLOCK_APP_PASSWORD" "$clients"
        user operator "$RLOCK_OPERATOR_PASSWORD" "$clients"
        user metrics "$RLOCK_METRICS_PASSWORD" "$clients"
    } >"$conf.part"
    sync
    mv "$conf.part" "$conf"
    sync
}

# A Sentinel that hears of a failover while it cannot resolve the new primary's name keeps the old primary under the new
# number, and does not try again. This function corrects it. Each check starts about sixty processes, so it is made only
# every 20 s.
correct() {
    while sleep 20 && kill -0 $$ 2>/dev/null; do
        ask_sentinels
        for server in $split; do
            case $(ask node "$server" 6379 info replication </dev/null) in
                *role:master*state=online*)
                    mine=$(ask node "$RLOCK_SELF" 26379 sentinel get-master-addr-by-name "$name" </dev/null | sed -n 1p)
                    [ "$mine" = "$server" ] || tell "$RLOCK_SELF" "$server" $((epoch + 1))
                    ;;
            esac
        done
    done
}

# Sentinel writes its state into its configuration file, which is therefore created only once.
sentinel() {
    conf=$data/sentinel.conf
    if ! grep -q "^sentinel monitor $name " "$conf" 2>/dev/null; then
        find_state
        # shellcheck disable=SC2086 # $# becomes their number
        set -- $RLOCK_SENTINELS
        {
            printf '%s\n' 'sentinel resolve-hostnames yes' 'sentinel announce-hostnames yes' \
                "sentinel announce-ip $RLOCK_SELF" "sentinel monitor $name $primary 6379 $(($# / 2 + 1))" \
                "sentinel down-after-milliseconds $name 5000" "sentinel failover-timeout $name 10000" \
                "sentinel config-epoch $name $epoch" "sentinel leader-epoch $name $epoch" \
                "sentinel current-epoch $epoch" 'protected-mode no'
        } >"$conf.part"
        sync
        mv "$conf.part" "$conf"
        sync
    fi
    write_settings
    correct &
    exec "$start" "$conf" --sentinel --port 26379
}
