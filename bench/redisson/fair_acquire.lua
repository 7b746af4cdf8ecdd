-- KEYS: lock, queue (list of owners), ends (sorted set: owner, when its wait ends).
-- ARGV: lease in ms, owner, wait in ms, the client's clock in ms.
local now = tonumber(ARGV[4])
while true do
    local head = redis.call('lindex', KEYS[2], 0)
    if not head then break end
    local ends = redis.call('zscore', KEYS[3], head)
    if not ends or tonumber(ends) > now then break end
    redis.call('zrem', KEYS[3], head)
    redis.call('lpop', KEYS[2])
end
if redis.call('exists', KEYS[1]) == 0
    and (redis.call('exists', KEYS[2]) == 0 or redis.call('lindex', KEYS[2], 0) == ARGV[2]) then
    redis.call('lpop', KEYS[2])
    redis.call('zrem', KEYS[3], ARGV[2])
    for _, waiter in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
        redis.call('zincrby', KEYS[3], -tonumber(ARGV[3]), waiter)
    end
    redis.call('hset', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return nil
end
if redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
    redis.call('hincrby', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return nil
end
if redis.call('zscore', KEYS[3], ARGV[2]) then
    return math.max(0, redis.call('pttl', KEYS[1]))
end
local last = redis.call('lindex', KEYS[2], -1)
local ends = last and redis.call('zscore', KEYS[3], last)
local ttl = ends and tonumber(ends) - now or redis.call('pttl', KEYS[1])
redis.call('zadd', KEYS[3], ttl + now + tonumber(ARGV[3]), ARGV[2])
redis.call('rpush', KEYS[2], ARGV[2])
return ttl
