/** A real server with the module, for tests: {@link rlock.testing.RlockServer}. Nothing here imitates a lock. */
package rlock.testing;
