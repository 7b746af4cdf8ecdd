/**
 * Metrics and spans by OpenTelemetry: give a {@link rlock.opentelemetry.RlockTelemetry} to the builder of
 * {@link rlock.Locks} as its listener.
 */
package rlock.opentelemetry;
