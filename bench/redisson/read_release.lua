-- KEYS: lock, channel, prefix of this owner's single reads, prefix of all owners' single reads, latch.
-- ARGV: owner, lifetime of the latch in ms.
--[latch] local told = redis.call('get', KEYS[5])
--[latch] if told then return tonumber(told) end
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode then
    redis.call('publish', KEYS[2], 0)
    --[latch] redis.call('set', KEYS[5], 1, 'px', ARGV[2])
    return nil
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return nil
end
local depth = redis.call('hincrby', KEYS[1], ARGV[1], -1)
if depth == 0 then
    redis.call('hdel', KEYS[1], ARGV[1])
end
redis.call('del', KEYS[3] .. ':' .. (depth + 1))
if redis.call('hlen', KEYS[1]) > 1 then
    local longest = -3
    for _, name in ipairs(redis.call('hkeys', KEYS[1])) do
        local holds = tonumber(redis.call('hget', KEYS[1], name))
        if type(holds) == 'number' then
            for number = holds, 1, -1 do
                local key = KEYS[4] .. ':' .. name .. ':rwlock_timeout:' .. number
                longest = math.max(longest, redis.call('pttl', key))
            end
        end
    end
    if longest > 0 then
        redis.call('pexpire', KEYS[1], longest)
        --[latch] redis.call('set', KEYS[5], 0, 'px', ARGV[2])
        return 0
    end
    if mode == 'write' then
        --[latch] redis.call('set', KEYS[5], 0, 'px', ARGV[2])
        return 0
    end
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], 0)
--[latch] redis.call('set', KEYS[5], 1, 'px', ARGV[2])
return 1
