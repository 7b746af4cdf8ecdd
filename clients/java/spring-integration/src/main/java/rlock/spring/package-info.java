/**
 * Lock registries for Spring Integration: {@link rlock.spring.RlockRegistry} from version 7 on, and
 * {@link rlock.spring.RlockRegistry6} for version 6.5.
 */
package rlock.spring;
