<?php
// PHP serves one request at a time, so its connection may block: no subscription is needed.
$redis = new Redis();
$redis->connect('127.0.0.1', (int) getenv('PORT'), 2.0);
$redis->setOption(Redis::OPT_READ_TIMEOUT, 12); // seconds: longer than BLOCK

function acquire(Redis $redis, string $key, string $owner, int $ms): ?int
{
    $token = $redis->rawCommand('RLOCK.ACQUIRE', $key, $owner, 'LEASE', 30000, 'DEPTH', 1, 'BLOCK', $ms);
    if ($token === false && ($error = $redis->getLastError()) !== null) {
        throw new RedisException($error);
    }
    return $token ?: null; // phpredis returns false for nil
}

$owner = gethostname() . ':' . getmypid() . ':' . bin2hex(random_bytes(4)); // one for each request
$token = acquire($redis, 'order:42', $owner, 10000);
if ($token === null) {
    exit("somebody else holds it\n");
}
try {
    echo 'a second owner gets it: ', var_export(acquire($redis, 'order:42', 'other', 200) !== null, true), "\n";
} finally {
    $redis->rawCommand('RLOCK.RELEASE', 'order:42', $owner, 'TOKEN', $token);
}
echo "released\n";
