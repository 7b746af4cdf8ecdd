package rlock.tests;

final class ShedLockOverJedisTest extends ShedLockTests {
    ShedLockOverJedisTest() {
        super(Over.JEDIS);
    }
}
