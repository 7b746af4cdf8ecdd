package machine

import "testing"

// The clock may have started less than a lease ago.
func TestAShorterLeaseIsCountedFromBeforeTheClockBegan(t *testing.T) {
	if after := After(-20_000, 30_000); after != 10_000 {
		t.Error(after)
	}
	if After(5, Forever) != Forever || After(Forever, 5) != Forever {
		t.Error("forever ends")
	}
	hold := NewHold(Kept{Lease: 30_000, Sent: 1_000})
	hold.Step(2_000, Input{Event: Extend, N: 2_000 + 10_000 - 30_000})
	if hold.Deadline() != 31_000 {
		t.Error(hold.Deadline())
	}
}
