//go:build race

package rlock

// Waits that ask again every second take many times longer with the race detector.
const manyWaits = 200
