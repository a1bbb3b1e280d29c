package gpu

import "slices"

// digitBits is how much of a time one pass of sortTimes looks at: the counters of a digit fit a CPU's first cache.
const digitBits = 11

// fewTimes is from how many times on counting digits is faster than comparing.
const fewTimes = 1 << 12

// sortTimes sorts times, ns. Many threads' times are as good as random, and comparing them took more than all else that
// is done with a launch; those of one recording differ in their lower 35 bits only, which makes four passes.
func sortTimes(list []uint64) {
	if len(list) < fewTimes || slices.IsSorted(list) {
		slices.Sort(list)
		return
	}
	least, most := slices.Min(list), slices.Max(list)
	from, to := list, make([]uint64, len(list))
	for shift := 0; shift < 64 && (most-least)>>shift > 0; shift += digitBits {
		byDigit(from, to, least, shift)
		from, to = to, from
	}
	if &from[0] != &list[0] {
		copy(list, from)
	}
}

// byDigit writes times in the order of one of their digits, and of equals in the order in which they were.
func byDigit(from, to []uint64, least uint64, shift int) {
	const mask = 1<<digitBits - 1
	var at [1 << digitBits]int
	for _, v := range from {
		at[(v-least)>>shift&mask]++
	}
	sum := 0
	for d, n := range at {
		at[d], sum = sum, sum+n
	}
	for _, v := range from {
		d := (v - least) >> shift & mask
		to[at[d]] = v
		at[d]++
	}
}
