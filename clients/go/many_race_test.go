//go:build race

package rlock

// What asks again every second takes many times longer with the race detector.
const manyWaits = 200
