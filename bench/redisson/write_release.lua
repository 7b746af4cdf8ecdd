-- KEYS: lock, channel, latch. ARGV: the owner's name for writing, lease in ms, lifetime of the latch in ms.
--[latch] local told = redis.call('get', KEYS[3])
--[latch] if told then return tonumber(told) end
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode then
    redis.call('publish', KEYS[2], 1)
    --[latch] redis.call('set', KEYS[3], 1, 'px', ARGV[3])
    return nil
end
if mode ~= 'write' or redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return nil
end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
    redis.call('pexpire', KEYS[1], ARGV[2])
    --[latch] redis.call('set', KEYS[3], 0, 'px', ARGV[3])
    return 0
end
redis.call('hdel', KEYS[1], ARGV[1])
if redis.call('hlen', KEYS[1]) == 1 then
    redis.call('del', KEYS[1])
    redis.call('publish', KEYS[2], 1)
else
    redis.call('hset', KEYS[1], 'mode', 'read')
end
--[latch] redis.call('set', KEYS[3], 1, 'px', ARGV[3])
return 1
