package correlate

// table holds the longest common subsequences of all beginnings of two sequences, in a
// band around the diagonal.
type table struct {
	n, m  int
	low   int // the least j - i in the band
	width int
	best  []int32 // best[i*width + j-i-low]: of i and j elements
	fits  []bool  // likewise: element i and element j
}

// cell is an element of each sequence.
type cell struct{ i, j int }

// newTable makes the table for sequences of n and m elements; false where it would be too large.
func newTable(n, m int) (*table, bool) {
	t := &table{n: n, m: m, low: min(0, m-n) - margin}
	t.width = max(0, m-n) + margin - t.low + 1
	if max(n-m, m-n) > maxBand || (n+1)*t.width > maxCells {
		return nil, false
	}
	t.best, t.fits = make([]int32, (n+1)*t.width), make([]bool, (n+1)*t.width)
	return t, true
}

// at returns the place of (i, j), -1 outside of the band.
func (t *table) at(i, j int) int {
	d := j - i - t.low
	if d < 0 || d >= t.width || i < 0 || j < 0 || i > t.n || j > t.m {
		return -1
	}
	return i*t.width + d
}

// of returns the value of a place, a very low one outside.
func (t *table) of(list []int32, i, j int) int32 {
	if k := t.at(i, j); k >= 0 {
		return list[k]
	}
	return -1 << 30
}

// fill computes the table.
func (t *table) fill(fits func(i, j int) bool) {
	for i := 0; i <= t.n; i++ {
		for j := max(0, i+t.low); j <= min(t.m, i+t.low+t.width-1); j++ {
			k := t.at(i, j)
			if i < t.n && j < t.m {
				t.fits[k] = fits(i, j)
			}
			v := int32(0)
			if i > 0 || j > 0 {
				v = max(0, t.of(t.best, i-1, j), t.of(t.best, i, j-1))
			}
			if d := t.at(i-1, j-1); d >= 0 && t.fits[d] {
				v = max(v, t.best[d]+1)
			}
			t.best[k] = v
		}
	}
}

// forced returns the pairs that all longest common subsequences have: each of these has one
// pair of each rank, so a rank with a single candidate is in all of them.
func (t *table) forced() []cell {
	rest := t.rest()
	total := t.of(t.best, t.n, t.m)
	count, first := make([]int, max(0, total)), make([]cell, max(0, total))
	for i := range t.n {
		for j := max(0, i+t.low); j <= min(t.m-1, i+t.low+t.width-1); j++ {
			k := t.at(i, j)
			if !t.fits[k] || t.best[k]+1+max(0, t.of(rest, i+1, j+1)) != total {
				continue
			}
			rank := t.best[k]
			if count[rank] == 0 {
				first[rank] = cell{i, j}
			}
			count[rank]++
		}
	}
	var out []cell
	for rank, n := range count {
		if n == 1 {
			out = append(out, first[rank])
		}
	}
	return out
}

// rest computes the same of all ends: rest[i][j] is of the elements from i and j on.
func (t *table) rest() []int32 {
	rest := make([]int32, len(t.best))
	for i := t.n; i >= 0; i-- {
		for j := min(t.m, i+t.low+t.width-1); j >= max(0, i+t.low); j-- {
			v := int32(0)
			if i < t.n || j < t.m {
				v = max(0, t.of(rest, i+1, j), t.of(rest, i, j+1))
			}
			k := t.at(i, j)
			if i < t.n && j < t.m && t.fits[k] {
				v = max(v, max(0, t.of(rest, i+1, j+1))+1)
			}
			rest[k] = v
		}
	}
	return rest
}
