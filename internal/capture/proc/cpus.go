package proc

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	onlineCPUs = "/sys/devices/system/cpu/online"
	maxCPU     = 8191 // NR_CPUS is at most 8,192 on x86-64
)

// readCPUs returns the CPUs that a list such as "0-3,8" names.
func readCPUs(path string) ([]int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return nil, err
	}
	return parseCPUs(strings.TrimSpace(string(text)))
}

func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("list of CPUs %q: %w", list, err)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil || to > maxCPU || from > to {
			return nil, fmt.Errorf("list of CPUs %q: bad range %q", list, part)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, int(cpu))
		}
		if len(cpus) > maxCPU+1 {
			return nil, fmt.Errorf("list of CPUs: names more than %d", maxCPU+1)
		}
	}
	return cpus, nil
}

// Quota shares a table of bounded size, from which nothing is ever removed, among those who fill it: each may hold as
// much as is still free. So one alone gets half of it, and whoever comes later always finds room. It is not safe for
// concurrent use.
type Quota struct {
	rows, bytes int // that the table holds at most
	total       usage
	used        map[Payer]usage
}

type usage struct{ rows, bytes int }

// NewQuota returns the quota of a table of so many rows and bytes.
func NewQuota(rows, bytes int) Quota {
	return Quota{rows: rows, bytes: bytes, used: map[Payer]usage{}}
}

// Take charges who for one row of so many bytes. It reports false, and charges nothing, where who has used up their
// share.
func (q *Quota) Take(who Payer, bytes int) bool {
	u := q.used[who]
	u.rows++
	u.bytes += bytes
	if u.rows > q.rows-q.total.rows || u.bytes > q.bytes-q.total.bytes {
		return false
	}
	q.used[who] = u
	q.total.rows++
	q.total.bytes += bytes
	return true
}
