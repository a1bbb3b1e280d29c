package quantile

import "testing"

func TestOf(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		values        []int
		percent, want int
	}{
		{nil, 50, 0},
		{[]int{7}, 0, 7},
		{[]int{7}, 50, 7},
		{[]int{7}, 100, 7},
		{[]int{1, 2}, 50, 1},
		{[]int{1, 2}, 51, 2},
		{[]int{1, 2, 3}, 50, 2},
		{[]int{1, 2, 3, 4}, 50, 2},
		{hundred, 0, 1},
		{hundred, 1, 1},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{hundred[:50], 99, 50},
	} {
		if got := Of(c.values, c.percent); got != c.want {
			t.Errorf("%d%% of %v: %d, want %d", c.percent, c.values, got, c.want)
		}
	}
}

func TestMedian(t *testing.T) {
	if got := Median([]float64{3, 1, 4, 2}); got != 2 {
		t.Errorf("%g, want 2", got)
	}
	if got := Upper([]float64{3, 1, 4, 2}); got != 3 {
		t.Errorf("the upper one is %g, want 3", got)
	}
	if Median([]int{2, 1, 3}) != 2 || Upper([]int{2, 1, 3}) != 2 {
		t.Error("the median of three is not the one in the middle")
	}
	if Median([]uint64(nil)) != 0 || Upper([]uint64(nil)) != 0 {
		t.Error("the median of none is not 0")
	}
}
