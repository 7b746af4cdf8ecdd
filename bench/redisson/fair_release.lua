-- KEYS: lock, queue, ends, latch. ARGV: owner, lease in ms, the client's clock in ms, prefix of the
-- channels, lifetime of the latch in ms.
--[latch] local told = redis.call('get', KEYS[4])
--[latch] if told then return tonumber(told) end
local now = tonumber(ARGV[3])
while true do
    local head = redis.call('lindex', KEYS[2], 0)
    if not head then break end
    local ends = redis.call('zscore', KEYS[3], head)
    if not ends or tonumber(ends) > now then break end
    redis.call('zrem', KEYS[3], head)
    redis.call('lpop', KEYS[2])
end
if redis.call('exists', KEYS[1]) == 0 then
    local head = redis.call('lindex', KEYS[2], 0)
    if head then redis.call('publish', ARGV[4] .. head, 0) end
    --[latch] redis.call('set', KEYS[4], 1, 'px', ARGV[5])
    return 1
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return nil
end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
    redis.call('pexpire', KEYS[1], ARGV[2])
    --[latch] redis.call('set', KEYS[4], 0, 'px', ARGV[5])
    return 0
end
redis.call('del', KEYS[1])
--[latch] redis.call('set', KEYS[4], 1, 'px', ARGV[5])
local head = redis.call('lindex', KEYS[2], 0)
if head then redis.call('publish', ARGV[4] .. head, 0) end
return 1
