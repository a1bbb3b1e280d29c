package procfile

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-1\n": {0, 1}, "0-2,5,7-8": {0, 1, 2, 5, 7, 8}} {
		if got, err := ParseCPUs(list); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %v %v, want %v", list, got, err, want)
		}
	}
	for _, bad := range []string{"", "x", "3-1", "0-9000", "0-", "-3", "1,,2", "99999999999999999999"} {
		if got, err := ParseCPUs(bad); err == nil {
			t.Errorf("%q: %v without an error", bad, got)
		}
	}
}

func TestStatus(t *testing.T) {
	s := Status("Name:\tUid:\\n7\nNoColon\nUid:\t1000\t0\nEmpty:\nNSpid:\t6 \n")
	for name, want := range map[string]string{
		"Name": "Uid:\\n7", "Uid": "1000\t0", "NSpid": "6", "Empty": "", "No": "",
	} {
		if got := s.Field(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	own, err := ReadStatus("/proc/self/status")
	must.NoError(t, err)
	if own.Field("Pid") != strconv.Itoa(os.Getpid()) {
		t.Errorf("own pid is %q", own.Field("Pid"))
	}
}

func TestParseStatm(t *testing.T) {
	page := int64(os.Getpagesize())
	if m, ok := ParseStatm([]byte("90 30 20 1 0 5 0\n")); !ok || m.Resident != 30*page || m.Shared != 20*page {
		t.Errorf("%+v, %v", m, ok)
	}
	for _, bad := range []string{"", "1 2", "1 x 3", "1 2 99999999999999999999"} {
		if m, ok := ParseStatm([]byte(bad)); ok {
			t.Errorf("%q: %+v", bad, m)
		}
	}
}

func TestCPUsOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "online")
	if cpus, err := CPUs(path); err == nil {
		t.Errorf("%v out of a file that is not there", cpus)
	}
	must.NoError(t, os.WriteFile(path, []byte("0,2\n"), 0o600))
	if cpus, err := CPUs(path); err != nil || !slices.Equal(cpus, []int{0, 2}) {
		t.Errorf("%v, error %v", cpus, err)
	}
}

// FuzzParseCPUs: a list of CPUs names none twice as often as its text is long, and none that Linux cannot have.
func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8,10-11")
	f.Add("0-8191,0-8191,0-8191")
	f.Add("5-")
	fuzzing.Run(f, func(t *testing.T, list string) {
		cpus, err := ParseCPUs(list)
		if err != nil {
			return
		}
		if len(cpus) == 0 || len(cpus) > maxCPU+1 || slices.Min(cpus) < 0 || slices.Max(cpus) > maxCPU {
			t.Errorf("%q: %d CPUs", list, len(cpus))
		}
	})
}

func TestStatFields(t *testing.T) {
	for text, want := range map[string]int{"7 (a) R 1 2 (x)) S 1 7": 3, "7 (a)": 0, "": 0, "1 2 3": 3} {
		if got := StatFields([]byte(text)); len(got) != want {
			t.Errorf("%q has the fields %q", text, got)
		}
	}
}

func TestParseMapsLine(t *testing.T) {
	got, ok := ParseMapsLine([]byte("7f00-7fa0 r-xp 00001000 fd:01 42   /lib/a b.so (deleted)"))
	want := MapsLine{
		Start: 0x7f00, End: 0x7fa0, Offset: 0x1000, Major: 0xfd, Minor: 1, Inode: 42,
		Perms: []byte("r-xp"), Name: []byte("/lib/a b.so (deleted)"),
	}
	if d := cmp.Diff(want, got); d != "" || !ok {
		t.Errorf("(-want +got):\n%s", d)
	}
	if m, ok := ParseMapsLine([]byte("7f00-7fa0 rw-s 00000000 00:00 0")); !ok || len(m.Name) > 0 {
		t.Errorf("of anonymous memory %+v, %v", m, ok)
	}
	for _, bad := range []string{
		"", "7f00", "7fa0-7f00 r-xp 0 0:0 0", "7f00-7fa0 r-xp 0 0:0 ", "7f00-7fa0 rx", "x-7fa0 r-xp 0 0:0 0",
	} {
		if m, ok := ParseMapsLine([]byte(bad)); ok {
			t.Errorf("%q is %+v", bad, m)
		}
	}
}
