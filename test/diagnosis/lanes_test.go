package diagnosis

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestParseList(t *testing.T) {
	for text, want := range map[string]string{
		"0\n": "[0]", "0-1\n": "[0 1]", "3,8-10,12": "[3 8 9 10 12]", "": "[]", "x": "[]",
	} {
		if got := fmt.Sprint(parseList(text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestShare: a core is one lane's alone, all lanes are as large, and the test keeps CPUs for itself.
func TestShare(t *testing.T) {
	all := make([]int, 16)
	for i := range all {
		all[i] = i
	}
	alone := func(cpu int) []int { return []int{cpu} }
	halves := func(cpu int) []int { return []int{cpu % 8, cpu%8 + 8} }
	for _, c := range []struct {
		name     string
		siblings func(int) []int
		lanes    int
		want     string
	}{
		{"a CPU a core", alone, 4, "[[0 1 2] [3 4 5] [6 7 8] [9 10 11]] [12 13 14 15]"},
		{"a CPU a core, many lanes", alone, 7, "[[0 1] [2 3] [4 5] [6 7] [8 9] [10 11] [12 13]] [14 15]"},
		{"two CPUs a core", halves, 6, "[[0 8] [1 9] [2 10] [3 11] [4 12] [5 13]] [6 14 7 15]"},
		{"two CPUs a core, few lanes", halves, 2, "[[0 8 1 9 2 10] [3 11 4 12 5 13]] [6 14 7 15]"},
	} {
		lanes, rest, err := share(cores(all, c.siblings), c.lanes)
		if got := fmt.Sprint(lanes, rest); got != c.want || err != nil {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
	if lanes, _, err := share(cores(all, alone), 8); err == nil {
		t.Errorf("8 lanes of 16 CPUs are %v, and nothing is left for the test", lanes)
	}
	if lanes, _, err := share(cores([]int{0}, alone), 2); err == nil {
		t.Errorf("two lanes of one CPU are %v", lanes)
	}
}

// TestSweep: each job is done once, what waits for the disk by the first lane alone, and the results are in the jobs'
// order however they end.
func TestSweep(t *testing.T) {
	var jobs []job
	for n := range 40 {
		j := job{number: n}
		if n%7 == 3 {
			j.s.want = "disk"
		}
		jobs = append(jobs, j)
	}
	type done struct{ number, lane int }
	var mu sync.Mutex
	most := 0
	all := sweep(t, []lane{{number: 0}, {number: 1}, {number: 2}}, jobs, func(t *testing.T, l *lane, j *job) *done {
		t.Helper()
		if j.number == 20 {
			t.Skip("one that cannot run")
		}
		return &done{j.number, l.number}
	}, func(so []*done) {
		mu.Lock()
		defer mu.Unlock()
		most = max(most, len(so))
	})
	var numbers []int
	for _, d := range all {
		numbers = append(numbers, d.number)
		if d.number%7 == 3 && d.lane != 0 {
			t.Errorf("%d waited for the disk in lane %d", d.number, d.lane)
		}
	}
	if !slices.IsSorted(numbers) || len(slices.Compact(numbers)) != len(jobs)-1 || most != len(jobs)-1 {
		t.Errorf("%v; told of %d", numbers, most)
	}
}

// TestEnter: a process has the CPUs of the lane that started it, and nobody else has.
func TestEnter(t *testing.T) {
	const status = "/proc/thread-self/status"
	before, err := allowedCPUs(status)
	if err != nil || len(before) < 2 {
		t.Skipf("needs two CPUs: %v %v", before, err)
	}
	t.Run("lane", func(t *testing.T) {
		l := lane{cpus: before[1:2]}
		l.enter(t)
		out, err := exec.CommandContext(t.Context(), "cat", "/proc/self/status").Output()
		if got := allowedIn(string(out)); err != nil || !slices.Equal(got, l.cpus) {
			t.Errorf("a process of lane %v has CPUs %v, %v", l.cpus, got, err)
		}
	})
	if after, err := allowedCPUs(status); err != nil || !slices.Equal(after, before) {
		t.Errorf("CPUs %v became %v, %v", before, after, err)
	}
}

func allowedCPUs(path string) ([]int, error) {
	text, err := os.ReadFile(path)
	return allowedIn(string(text)), err
}

// allowedIn reads the CPUs of a thread from its status (proc(5)).
func allowedIn(status string) []int {
	for line := range strings.Lines(status) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return parseList(list)
		}
	}
	return nil
}
