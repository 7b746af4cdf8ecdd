/**
 * Connections by Lettuce: {@link rlock.lettuce.LettuceLocks} makes a {@link rlock.Locks} for one server, for the
 * primary behind Sentinels, or for a Cluster.
 */
package rlock.lettuce;
