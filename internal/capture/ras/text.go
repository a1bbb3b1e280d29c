package ras

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// The text names what is wrong only: ranks that are missing, or that are few and have launched another number of
// operations than the others (rasClientRunComms of src/ras/client_support.cc, 2.24 to 2.30).
var (
	communicatorLine = regexp.MustCompile(`^#\d+-\d+ \(([0-9a-f]{1,16})\) (INCOMPLETE|MISMATCH)`)
	operationLine    = regexp.MustCompile(`^  Communicator ranks have different (\w+) operation counts`)
	groupLine        = regexp.MustCompile(
		`^  \d+ ranks have (?:launched up to operation (\d+)|not launched any operations)`,
	)
	rankLine = regexp.MustCompile(
		`^  Rank (\d+)(?: has (?:launched up to operation (\d+)|(not launched any operations)|status \w+))? -- ` +
			`(?:GPU (\d+)\S*(?: \([^)]*\))? managed by process (\d+) on node (\S+)|\[process information not found\])`)
	// of 2.24 and 2.25
	missingLine = regexp.MustCompile(`^\s+The missing ranks?: ([\d, -]+)$`)
)

// reader goes over the lines of the text.
type reader struct {
	out       *recording.RAS
	ranks     int
	missing   bool   // the section is about ranks that did not answer
	operation string // that counts are of; "": none
	count     uint64 // of the group of ranks that was named last
}

func fromText(text string) (*recording.RAS, error) {
	if !strings.Contains(text, "Communicators...") {
		return nil, errors.New("the answer is none of NCCL's RAS: it has no communicators")
	}
	r := &reader{out: &recording.RAS{}}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if version, ok := strings.CutPrefix(line, "NCCL version "); ok && r.out.Version == "" {
			r.out.Version, _, _ = strings.Cut(version, " ")
		}
		if err := r.take(line); err != nil {
			return nil, err
		}
	}
	return r.out, nil
}

func (r *reader) take(line string) error {
	if m := communicatorLine.FindStringSubmatch(line); m != nil {
		r.missing, r.operation, r.count = m[2] == "INCOMPLETE", "", 0
		r.communicator(m[1])
		return nil
	}
	if m := operationLine.FindStringSubmatch(line); m != nil {
		r.operation = m[1]
	}
	if m := groupLine.FindStringSubmatch(line); m != nil {
		r.count, _ = strconv.ParseUint("0"+m[1], 10, 64)
		if c := r.last(); c != nil && r.operation != "" {
			if c.Most == nil {
				c.Most = map[string]uint64{}
			}
			c.Most[r.operation] = max(c.Most[r.operation], r.count)
		}
	}
	if !strings.HasPrefix(line, "  ") {
		if line != "" {
			r.operation, r.missing = "", false
		}
		return nil
	}
	c := r.last()
	if m := missingLine.FindStringSubmatch(line); m != nil && c != nil {
		return r.missingRanks(c, m[1])
	}
	m := rankLine.FindStringSubmatch(line)
	if m == nil || c == nil {
		return nil
	}
	if r.ranks++; r.ranks > maxRanks {
		return errors.New("NCCL's RAS tells of more ranks than any job has")
	}
	r.rank(c, m)
	return nil
}

// communicator goes on with the one of a hash.
func (r *reader) communicator(hash string) {
	for i := range r.out.Communicators {
		if r.out.Communicators[i].Hash == hash {
			last := len(r.out.Communicators) - 1
			r.out.Communicators[i], r.out.Communicators[last] = r.out.Communicators[last], r.out.Communicators[i]
			return
		}
	}
	if len(r.out.Communicators) < maxCommunicators {
		r.out.Communicators = append(r.out.Communicators, recording.RASCommunicator{Hash: hash})
	}
}

func (r *reader) last() *recording.RASCommunicator {
	if n := len(r.out.Communicators); n > 0 {
		return &r.out.Communicators[n-1]
	}
	return nil
}

// rank takes the line of a rank.
func (r *reader) rank(c *recording.RASCommunicator, m []string) {
	number := func(s string) uint64 { n, _ := strconv.ParseUint("0"+s, 10, 63); return n }
	one := recording.RASRank{Rank: int(number(m[1])), GPU: int(number(m[4])), PID: uint32(number(m[5])), Host: m[6]}
	if r.missing {
		c.Missing = append(c.Missing, one)
		return
	}
	if r.operation == "" {
		return // it has another status: it is being made or ended
	}
	count := r.count
	if m[2] != "" || m[3] != "" {
		count = number(m[2])
	}
	for i := range c.Ranks {
		if c.Ranks[i].Rank == one.Rank {
			c.Ranks[i].Counts[r.operation] = count
			return
		}
	}
	one.Counts = map[string]uint64{r.operation: count}
	c.Ranks = append(c.Ranks, one)
}

// missingRanks takes a list of numbers and ranges: "1, 4-7".
func (r *reader) missingRanks(c *recording.RASCommunicator, list string) error {
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.Atoi(from)
		last := first
		if ranged && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil || last-first >= maxRanks-r.ranks {
			return fmt.Errorf("NCCL's RAS tells of missing ranks %.40q: no numbers, or more than any job has", list)
		}
		for ; first <= last; first++ {
			r.ranks++
			c.Missing = append(c.Missing, recording.RASRank{Rank: first})
		}
	}
	return nil
}
