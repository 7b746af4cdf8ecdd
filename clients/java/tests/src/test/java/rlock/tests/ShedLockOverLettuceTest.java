package rlock.tests;

final class ShedLockOverLettuceTest extends ShedLockTests {
    ShedLockOverLettuceTest() {
        super(Over.LETTUCE);
    }
}
