package proc

import "testing"

// TestQuota: whoever fills the table as far as it lets them leaves room for the next one, by rows and by bytes.
func TestQuota(t *testing.T) {
	for what, q := range map[string]Quota{"rows": NewQuota(1024, 1<<30), "bytes": NewQuota(1<<30, 10_240)} {
		var got []int
		for uid := range uint32(5) {
			n := 0
			for q.Take(Payer{UID: uid}, 10) {
				n++
			}
			got = append(got, n)
		}
		for i, least := range []int{512, 256, 128, 64, 32} {
			if got[i] < least-1 || got[i] > least+1 {
				t.Errorf("%s: user %d got %d of 1024, want %d", what, i, got[i], least)
			}
		}
		if q.Take(Payer{UID: 0}, 10) {
			t.Errorf("%s: the first one still gets more", what)
		}
	}
}
