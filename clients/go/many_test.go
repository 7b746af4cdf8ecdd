//go:build !race

package rlock

// Each of them asks again every second.
const manyWaits = 2000
