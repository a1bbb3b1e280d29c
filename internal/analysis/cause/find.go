package cause

import (
	"slices"
	"strings"
)

// usualCPUs is how many CPUs examples are for where no host is known.
const usualCPUs = 8

// All returns the table, by ID. Unknown is a row too: its advice is how to learn more.
func All() []Cause { return On(0) }

// On is All with examples for a host of so many CPUs; 0: not known.
func On(cpus int) []Cause {
	if cpus <= 0 {
		cpus = usualCPUs
	}
	table := make([]Cause, Count)
	for _, rows := range [][]Cause{
		programRows(cpus), bytesRows(cpus), interpreterRows(), launchRows(), memoryRows(), waitRows(cpus),
		outsideRows(), hostRows(cpus), cpuRows(cpus), deviceRows(), kernelRows(), copyRows(), communicationRows(),
		stragglerRows(), imbalanceRows(), pipelineRows(), hangRows(), errorRows(), clockRows(), lifeRows(),
	} {
		for _, r := range rows {
			table[r.ID] = r
		}
	}
	return table
}

// Of returns the row of a cause; that of Unknown for a number that is none.
func Of(id ID) Cause {
	if id >= Count {
		id = Unknown
	}
	return All()[id]
}

// ByKey returns the row with a key. Where there is none, nearest is the key that is most like it, "" where
// none is like it at all.
func ByKey(key string) (row Cause, nearest string, ok bool) { return find(All(), key) }

// Explained is ByKey among all that a report can name, causes of requests too.
func Explained(key string) (row Cause, nearest string, ok bool) {
	return find(Explainable(), key)
}

// OfRequests reports whether a key is that of something that holds requests up.
func OfRequests(key string) bool {
	return slices.ContainsFunc(ofRequests(), func(c Cause) bool { return c.Key == key })
}

// Explainable returns all that a report can name.
func Explainable() []Cause { return append(All(), ofRequests()...) }

func find(table []Cause, key string) (row Cause, nearest string, ok bool) {
	key = strings.ToLower(strings.NewReplacer("_", "-", " ", "-").Replace(strings.TrimSpace(key)))
	if key == "" {
		return Cause{}, "", false
	}
	best := max(2, len(key)/2) + 1 // more letters wrong than half of them is no slip of the finger
	for _, c := range table {
		if c.Key == key {
			return c, c.Key, true
		}
		d := distance(key, c.Key)
		if strings.Contains(c.Key, key) || strings.Contains(strings.ToLower(c.Title), key) {
			d = 1
		}
		if d < best {
			best, nearest = d, c.Key
		}
	}
	return Cause{}, nearest, false
}

// maxTyped bounds what distance looks at.
const maxTyped = 64

// distance is how many letters must be put in, left out or changed to make a of b.
func distance(a, b string) int {
	a, b = a[:min(len(a), maxTyped)], b[:min(len(b), maxTyped)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			left, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, left+cost)
		}
	}
	return row[len(b)]
}

// String returns the key of a cause.
func (id ID) String() string { return Of(id).Key }
