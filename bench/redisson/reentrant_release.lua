-- KEYS: lock, channel, latch. ARGV: owner, lease in ms, lifetime of the latch in ms.
--[latch] local told = redis.call('get', KEYS[3])
--[latch] if told then return tonumber(told) end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return nil
end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
    redis.call('pexpire', KEYS[1], ARGV[2])
    --[latch] redis.call('set', KEYS[3], 0, 'px', ARGV[3])
    return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], 0)
--[latch] redis.call('set', KEYS[3], 1, 'px', ARGV[3])
return 1
