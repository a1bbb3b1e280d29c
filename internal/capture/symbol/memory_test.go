package symbol_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// process is one that has mapped maps and written what a test says.
func process(t *testing.T, perf string) (symbol.Process, string) {
	t.Helper()
	root := t.TempDir()
	path := filepath.Join(root, "tmp/perf-7.map")
	if perf != "" {
		write(t, path, []byte(perf))
	}
	return symbol.Process{
		Key:    symbol.ProcessKey{PID: 4711, StartTime: 1},
		NSPID:  7,
		UID:    uint32(os.Getuid()),
		Maps:   func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(maps)), nil },
		Beside: func(p string) (symbol.File, error) { return open(filepath.Join(root, p)) },
	}, path
}

const maps = `55d0c0000000-55d0c0001000 r--p 00000000 08:01 12   /usr/bin/python3
55d0c0001000-55d0c0002000 r-xp 00001000 08:01 12   /usr/bin/python3
7f0000000000-7f0000010000 rwxp 00000000 00:00 0 
7f0000010000-7f0000020000 rw-p 00000000 00:00 0 
7f0000020000-7f0000030000 r-xp 00000000 00:00 0                          [anon:v8]
7f0000030000-7f0000040000 r-xs 00000000 00:01 99   /memfd:doublemapper (deleted)
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]
garbage
`

func TestResolveMemory(t *testing.T) {
	const perf = "7f0000000100 40 py::work:/app/main.py\n" +
		"0x7f0000000200 0x20 LazyCompile:~main\n" +
		"7f0000000300 40 old\n" +
		"no such line\n7f0000000400 zz bad size\n7f0000000500 0 empty\n" +
		"7f0000000300 40 new\n" +
		"7f0000020000 10000 everything\n7f0000020100 10 inner\n" +
		"7f0000000600 40 not written to the e"
	p, _ := process(t, perf)
	tests := []struct {
		addr uint64
		want string
	}{
		{0x7f0000000100, "py::work:/app/main.py"},
		{0x7f000000013f, "py::work:/app/main.py"},
		{0x7f0000000140, "[generated code]"},
		{0x7f0000000210, "LazyCompile:~main"},
		{0x7f0000000300, "new"},
		{0x7f0000000400, "[generated code]"},
		{0x7f0000000500, "[generated code]"},
		{0x7f0000000600, "[generated code]"},
		{0x7f0000000000, "[generated code]"},
		{0x7f0000020108, "inner"},
		{0x7f0000020120, "everything"},
		{0x7f0000030000, "[memfd:doublemapper]"},
		{0x7f0000010000, "[not mapped]"}, // not code
		{0x55d0c0001000, "[/usr/bin/python3]"},
		{0, "[not mapped]"},
		{1<<64 - 1, "[not mapped]"},
	}
	table := symbol.New(symbol.Options{})
	for range 2 {
		for _, tt := range tests {
			if got := table.ResolveMemory(p, tt.addr).String(); got != tt.want {
				t.Errorf("%#x is %q, want %q", tt.addr, got, tt.want)
			}
		}
	}
	if s := table.Stats(); s.Bytes > 16<<10 || s.Hits == 0 {
		t.Errorf("%+v", s)
	}
}

// TestProcessesAreForgotten: what was known of the memory of processes that have ended does not add up.
func TestProcessesAreForgotten(t *testing.T) {
	p, _ := process(t, "")
	now := time.Unix(1000, 0)
	table := symbol.New(symbol.Options{})
	table.SetNow(func() time.Time { return now })
	for i := range 100 {
		p.Key.PID = uint32(i + 1)
		table.ResolveMemory(p, 0x7f0000000100)
	}
	if n := table.Stats().Indexes; n != 100 {
		t.Errorf("%d of 100 processes are known", n)
	}
	now = now.Add(10 * time.Minute)
	for i := range 3 {
		p.Key.PID = uint32(i + 99) // one of before, and two that are new
		table.ResolveMemory(p, 0x7f0000000100)
	}
	if n := table.Stats().Indexes; n != 3 {
		t.Errorf("%d processes are known after 10 minutes in which only 3 ran", n)
	}
}

// Code that is compiled later has a name a second later.
func TestPerfMapGrows(t *testing.T) {
	p, path := process(t, "7f0000000100 40 first\n7f0000000200 40 sec")
	now := time.Unix(1000, 0)
	table := symbol.New(symbol.Options{})
	table.SetNow(func() time.Time { return now })
	check := func(when string, want ...string) {
		t.Helper()
		for i, w := range want {
			if got := table.ResolveMemory(p, 0x7f0000000100+0x100*uint64(i)).String(); got != w {
				t.Errorf("%s: %q, want %q", when, got, w)
			}
		}
	}
	check("at first", "first", "[generated code]")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must.NoError(t, err)
	fmt.Fprintf(f, "ond\n7f0000000100 40 first again\n")
	f.Close()
	check("at once", "first", "[generated code]")
	now = now.Add(time.Second)
	check("after a second", "first again", "second")
	write(t, path, []byte("7f0000000200 40 anew\n"))
	now = now.Add(time.Second)
	check("written anew", "[generated code]", "anew")
	write(t, path, []byte("7f0000000100 40 moved by a longer line\n7f0000000200 40 anew, and longer\n"))
	now = now.Add(time.Second)
	check("written anew and longer", "moved by a longer line", "anew, and longer")
	must.NoError(t, os.Remove(path))
	now = now.Add(time.Second)
	check("removed", "moved by a longer line", "anew, and longer") // its process had it so
}

// What a perf map may not be.
func TestPerfMapRefused(t *testing.T) {
	const line = "7f0000000100 40 believed\n"
	tests := []struct {
		name   string
		change func(t *testing.T, p *symbol.Process, path string)
		want   string
	}{
		{"as it should be", func(*testing.T, *symbol.Process, string) {}, "believed"},
		{"of somebody else", func(t *testing.T, p *symbol.Process, path string) {
			if os.Getuid() != 0 {
				t.Skip("needs root to give a file away")
			}
			p.UID = 1000
			must.NoError(t, os.Chown(path, 1001, 1001))
		}, ""},
		{"of root", func(t *testing.T, p *symbol.Process, _ string) {
			if os.Getuid() != 0 {
				t.Skip("needs root")
			}
			p.UID = 1000
		}, "believed"},
		{
			"older than the process",
			func(t *testing.T, p *symbol.Process, path string) { p.Born = time.Now().Add(time.Hour) },
			"",
		},
		{"a directory", func(t *testing.T, _ *symbol.Process, path string) {
			must.NoError(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o755)))
		}, ""},
		{"of another pid", func(t *testing.T, p *symbol.Process, _ string) { p.NSPID = 0 }, ""},
		{"one endless line", func(t *testing.T, _ *symbol.Process, path string) {
			write(t, path, append(bytes.Repeat([]byte("x"), 1<<20), line...))
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, path := process(t, line)
			tt.change(t, &p, path)
			if got := symbol.New(symbol.Options{}).ResolveMemory(p, 0x7f0000000110); got.Name != tt.want {
				t.Errorf("%+v, want %q", got, tt.want)
			}
		})
	}
}

// A perf map beyond the budget is read as far as a quarter of it goes.
func TestPerfMapBudget(t *testing.T) {
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&b, "%x 3 f%d\n", 0x7f0000000000+i*3, i)
	}
	p, _ := process(t, b.String())
	table := symbol.New(symbol.Options{Budget: 128 << 10})
	if got := table.ResolveMemory(p, 0x7f0000000000+100*3).String(); got != "f100" {
		t.Errorf("%q", got)
	}
	if got := table.ResolveMemory(p, 0x7f0000000000+19000*3).String(); got != "[generated code]" {
		t.Errorf("%q", got)
	}
	if s := table.Stats(); s.Bytes > 128<<10 {
		t.Errorf("%+v", s)
	}
}

// Our own vdso, by what debug/elf says of it.
func TestVDSO(t *testing.T) {
	self := func() (io.ReadCloser, error) { return os.Open("/proc/self/maps") }
	start, image := vdso(t)
	f, err := elf.NewFile(bytes.NewReader(image))
	must.NoError(t, err)
	syms, err := f.DynamicSymbols()
	must.NoError(t, err)
	table := symbol.New(symbol.Options{})
	p := symbol.Process{Key: symbol.ProcessKey{PID: 1}, Maps: self}
	want := map[uint64][]string{}
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Size > 0 {
			want[s.Value] = append(want[s.Value], s.Name)
		}
	}
	if len(want) < 3 {
		t.Fatalf("the vdso has %d functions", len(want))
	}
	for addr, names := range want {
		got := table.ResolveMemory(p, start+addr)
		if got.Module != "[vdso]" || got.Offset != 0 || !strings.Contains(strings.Join(names, " ")+" ", got.Name+" ") ||
			got.Name == "" {
			t.Errorf("%#x is %+v, want one of %v", addr, got, names)
		}
	}
	if got := table.ResolveMemory(p, start).String(); got != "[vdso]" {
		t.Errorf("the vdso's header is %q", got)
	}
}

func vdso(t *testing.T) (start uint64, image []byte) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	must.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		var end uint64
		if strings.HasSuffix(line, "[vdso]\n") {
			if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err != nil {
				t.Fatal(err)
			}
			image = make([]byte, end-start)
		}
	}
	if image == nil {
		t.Skip("no vdso here")
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skip("cannot read our own memory: ", err)
	}
	defer mem.Close()
	if _, err := mem.ReadAt(image, int64(start)); err != nil {
		t.Skip("cannot read our own vdso: ", err)
	}
	return start, image
}
