/**
 * Connections by Jedis: {@link rlock.jedis.JedisLocks} makes a {@link rlock.Locks} for one server, for the primary
 * behind Sentinels, or for a Cluster.
 */
package rlock.jedis;
