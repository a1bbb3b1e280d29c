package profile

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// linesProgram prints for code with every kind of statement its table of lines, and
// the line of each instruction as CPython itself reads it.
const linesProgram = `
import sys, threading, queue, contextlib, asyncio.base_events, json.decoder, argparse
def codes(c):
    yield c
    for k in c.co_consts:
        if hasattr(k, "co_linetable"):
            yield from codes(k)
for m in (threading, queue, contextlib, asyncio.base_events, json.decoder, argparse):
    c = compile(open(m.__file__).read(), m.__file__, "exec")
    for code in codes(c):
        lines = [str(-1 if line is None else line - code.co_firstlineno) for begin, end, line in code.co_lines() for _ in range(begin, end, 2)]
        print(code.co_linetable.hex() or "-", *lines)
`

// TestLinesAreCPythons reads tables as CPython 3.11 and later do, whatever versions there are.
func TestLinesAreCPythons(t *testing.T) {
	tried := 0
	for _, python := range pythonsOfTables() {
		tried++
		out, err := exec.CommandContext(t.Context(), python, "-c", linesProgram).Output()
		if err != nil {
			t.Fatalf("%s: %v", python, err)
		}
		codes := 0
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] == "-" {
				continue
			}
			codes++
			checkTable(t, python, fields[0], fields[1:])
		}
		if codes < 500 {
			t.Errorf("%s: %d tables, want hundreds", python, codes)
		}
	}
	if tried == 0 {
		t.Skip("needs a CPython of 3.11 or later")
	}
}

func checkTable(t *testing.T, python, table string, lines []string) {
	t.Helper()
	b, err := hex.DecodeString(table)
	must.NoError(t, err)
	for i, want := range lines {
		got, ok := lineOf(b, uint32(i))
		text := strconv.Itoa(int(got))
		if !ok {
			text = "-1"
		}
		if text != want {
			t.Fatalf("%s: instruction %d of %s is in line %s, want %s", python, i, table, text, want)
		}
	}
	if _, ok := lineOf(b, uint32(len(lines))); ok {
		t.Fatalf("%s: %s has a line for an instruction behind the last", python, table)
	}
}

// offsetProgram prints the file that holds CPython and where its code objects point to their table of lines.
const offsetProgram = `
import ctypes
code = (lambda: 0).__code__
table = code.co_linetable
at = [o for o in range(16, 400, 8) if ctypes.c_void_p.from_address(id(code) + o).value == id(table)]
files = [l.split()[-1] for l in open("/proc/self/maps") if "python" in l.split()[-1].rsplit("/", 1)[-1]]
files.sort(key=lambda f: "libpython" not in f)
print(files[0], *at)
`

func TestLineTableOffset(t *testing.T) {
	for _, python := range pythonsOfTables() {
		out, err := exec.CommandContext(t.Context(), python, "-c", offsetProgram).Output()
		must.NoError(t, err)
		fields := strings.Fields(string(out))
		if len(fields) != 2 {
			t.Fatalf("%s: %s", python, out)
		}
		ef, err := pfelf.Open(fields[0])
		must.NoError(t, err)
		if got := strconv.FormatUint(lineTableOffset(ef), 10); got != fields[1] {
			t.Errorf("%s: at %s, want %s", fields[0], got, fields[1])
		}
		must.NoError(t, ef.Close())
	}
}

// pythonsOfTables returns the interpreters that are found in $PATH and where pyenv keeps its own.
func pythonsOfTables() []string {
	places := filepath.SplitList(os.Getenv("PATH"))
	if root, err := exec.Command("pyenv", "root").Output(); err == nil { //nolint:noctx // short
		more, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "versions", "*", "bin"))
		places = append(places, more...)
	}
	seen := map[string]bool{}
	var out []string
	for minor := 11; minor <= 14; minor++ {
		name := "python3." + strconv.Itoa(minor)
		for _, place := range places {
			path := filepath.Join(place, name)
			if !seen[name] &&
				exec.Command(path, "-c", "pass").Run() == nil { //nolint:noctx // short; a shim without a version fails
				seen[name] = true
				out = append(out, path)
			}
		}
	}
	return out
}

func FuzzLineOf(f *testing.F) {
	f.Add([]byte{0xd9, 0x04, 0x05, 0xf8, 0xf2, 0x03, 0x01, 0x02, 0x03}, uint32(3))
	fuzzing.Run(f, func(_ *testing.T, table []byte, instruction uint32) { lineOf(table, instruction) })
}

// A table as Objects/lnotab_notes.txt of CPython 3.10 describes it.
func TestLineIn310(t *testing.T) {
	table := []byte{4, 1, 6, 2, 2, 0x80, 4, 0xff, 2, 0}
	for _, c := range []struct{ lasti, want uint32 }{
		{0, 11}, {1, 11}, {2, 13}, {4, 13}, {5, 0}, {6, 12}, {7, 12}, {8, 12}, {9, 0}, {1 << 31, 0},
	} {
		if got := lineIn310(table, c.lasti, 10); got != c.want {
			t.Errorf("instruction %d is in line %d, not %d", c.lasti, got, c.want)
		}
	}
}

func FuzzLineIn310(f *testing.F) {
	f.Add([]byte{4, 1, 6, 2}, uint32(3), uint32(1))
	fuzzing.Run(f, func(_ *testing.T, table []byte, lasti, first uint32) { lineIn310(table, lasti, first) })
}
