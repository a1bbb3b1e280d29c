package threads

import "sort"

// Gallop returns the first i in [0, n) for which before is false, n where there is
// none; before must be true up to some index and false from there on. It takes
// O(log d) steps, d being how far the result is from the hint.
func Gallop(n, hint int, before func(int) bool) int {
	var low, high int
	step := 1
	hint = min(max(hint, 0), n)
	if hint < n && before(hint) {
		for low = hint + 1; low+step < n && before(low+step); step *= 2 {
			low += step + 1
		}
		high = min(n, low+step+1)
	} else {
		for high = hint; high-step > 0 && !before(high-step); step *= 2 {
			high -= step
		}
		low = max(0, high-step)
	}
	return low + sort.Search(high-low, func(i int) bool { return !before(low + i) })
}
