package cuda

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestRows checks what must hold of every row for the probe and the decoder to
// understand each other.
func TestRows(t *testing.T) {
	names := make(map[string]bool)
	for _, r := range Rows() {
		if names[r.Name] {
			t.Errorf("%s: two rows have this name", r.Name)
		}
		names[r.Name] = true
		for _, problem := range unsound(r) {
			t.Errorf("%s: %s", r.Name, problem)
		}
	}
}

func unsound(r Row) []string {
	var p []string
	check := func(ok bool, problem string) {
		if !ok {
			p = append(p, problem)
		}
	}
	means := make(map[meaning]int)
	for _, s := range r.Slots {
		check((s.Param == 0) == (s.Meaning == meansNothing), "a slot has a parameter and no meaning, or the reverse")
		check(s.Param <= 15, "a selector has 4 bits")
		means[s.Meaning]++
	}
	delete(means, meansNothing)
	for m, n := range means {
		check(n == 1, m.String()+" twice: the decoder keeps one")
	}
	launch := r.Shape >= shapeLaunch && r.Shape <= shapeRTLaunchEx
	described := r.Shape == shapeCopy2D || r.Shape == shapeCopy3D
	check(r.Group != "" && r.Library != "", "no group or no library")
	check(!launch || r.Slots == [4]slot{} && !r.Timed, "a launch's arguments fill its event")
	check(
		!described || r.Timed && r.Slots[0] == r.Slots[1] && r.Slots[0] == r.Slots[2] && r.Slots[0] == slot{},
		"a described copy has a stream slot at most",
	)
	check(!described || r.Slots[3] == slot{} || r.Slots[3] == slot{2, meansStream},
		"the probe reads a described copy's stream from parameter 2")
	check(!r.Deref || r.Timed && r.Slots[0].Param != 0, "a result is read at the return, from the first slot")
	check((means[meansElements] == 1) == (r.Element > 0), "elements and their size go together")
	check(means[meansHeight] == 0 || means[meansBytes]+means[meansElements] == 1, "a height needs a width")
	check(
		r.Aux == slot{} || r.Aux.Meaning == meansCopyKind && r.Group == Copy && r.Direction == NoDirection ||
			r.Aux.Meaning == meansDataType && r.Group == groupCollective,
		"the auxiliary parameter is a copy kind, or NCCL's data type",
	)
	check(r.Group != Copy || r.Direction != NoDirection || r.Aux.Meaning == meansCopyKind || described,
		"a copy without a direction")
	check(r.Direction == NoDirection || r.Group == Copy, "only copies have directions")
	check(!r.Shadowed || r.Library == Runtime && !r.Timed, "only entry-only runtime functions are shadowed")
	check(!r.Hot || !r.Timed, "hot functions are entry only")
	check(!r.Glob() || r.Slots == [4]slot{} && r.Aux == slot{} && r.Only == nil,
		"the functions of a glob have no parameters in common")
	check(!strings.ContainsAny(strings.TrimSuffix(r.Name, "*"), "*?[ "), "odd name")
	check(!perThread(r.Name) && (trimVersion(r.Name) == r.Name || r.Only != nil), "suffixes stand in Only")
	check(
		strings.HasPrefix(r.Name, map[Library]string{Driver: "cu", Runtime: "cuda", libraryNCCL: "nccl"}[r.Library]),
		"name of the other library",
	)
	check(r.Library != Driver || !strings.HasPrefix(r.Name, "cuda"), "name of the other library")
	return p
}

// TestNoAmbiguity: no name may be claimed twice, and every row must be reachable
// by the names that it claims.
func TestNoAmbiguity(t *testing.T) {
	claims := make(map[string]string)
	for _, r := range Rows() {
		for _, claim := range r.Only {
			if other, taken := claims[claim]; taken {
				t.Errorf("%s is claimed by %s and %s", claim, other, r.Name)
			}
			claims[claim] = r.Name
			name, version, _ := strings.Cut(claim, "@")
			major := map[string]int{"": 0, "11": 11, "12": 12, "13": 13}[version]
			if got, ok := match(name, major); !ok || got.Name != r.Name {
				t.Errorf("%s in version %d resolves to %q, not to %s", name, major, got.Name, r.Name)
			}
		}
		if r.Only != nil {
			continue
		}
		probe := strings.TrimSuffix(r.Name, "*") + map[bool]string{true: "Zzz"}[r.Glob()]
		i, _ := find(probe+"_v9", 0)
		if i < 0 || theIndex().rows[i].Name != r.Name {
			t.Errorf("%s does not resolve to row %s", probe, r.Name)
		}
	}
}

// table returns the table as Markdown.
func table() string {
	var b strings.Builder
	b.WriteString(
		"| Function | Library | Group | Duration | Arguments, and the parameters that they are | Probed |\n" +
			"|---|---|---|---|---|---|\n",
	)
	for _, r := range Rows() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n",
			r.title(), r.Library, r.Group, r.duration(), r.arguments(), r.probed())
	}
	return b.String()
}

func (r *Row) title() string {
	if len(r.Only) == 0 {
		return "`" + r.Name + "`"
	}
	return "`" + r.Name + "` (exported as `" + strings.Join(r.Only, "`, `") + "`)"
}

func (r *Row) duration() string {
	if r.Timed {
		return "yes"
	}
	return "no"
}

func (r *Row) probed() string {
	switch {
	case r.Hot:
		return "on demand"
	case r.Shadowed:
		return "without a driver library"
	}
	return "always"
}

func (r *Row) arguments() string {
	var out []string
	switch r.Shape {
	case shapeLaunch, shapeLaunchEx, shapeRTLaunch, shapeRTLaunchEx:
		out = append(out, "function, grid, block, shared memory, stream")
	case shapeCopy2D, shapeCopy3D:
		out = append(out, "descriptor")
	}
	for i, s := range r.Slots {
		if s.Param == 0 {
			continue
		}
		word := s.Meaning.String()
		if i == 0 && r.Deref {
			word = "new " + word
		}
		if s.Meaning == meansElements {
			word = fmt.Sprintf("elements of %d bytes", r.Element)
		}
		out = append(out, fmt.Sprintf("%s %d", word, s.Param))
	}
	if r.Aux.Param != 0 {
		out = append(out, fmt.Sprintf("%s %d", r.Aux.Meaning, r.Aux.Param))
	}
	if r.Direction != NoDirection {
		out = append(out, string(r.Direction))
	}
	if r.Narrow {
		out = append(out, "32 bits")
	}
	return strings.Join(out, ", ")
}

// TestTableGolden keeps the table, so that every change
// of a row is seen in review: one that changes a row's slots and not its name
// makes older recordings unreadable.
func TestTableGolden(t *testing.T) {
	got := table()
	golden := filepath.Join("testdata", "table.md")
	if *update {
		must.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	must.NoError(t, err)
	if got != string(want) {
		t.Errorf("the table differs from %s; look at the difference, then run go test -update", golden)
	}
}

func TestResultNames(t *testing.T) {
	for _, c := range []struct {
		lib  Library
		code int32
		want string
	}{
		{Driver, 0, "CUDA_SUCCESS"},
		{Driver, 2, "CUDA_ERROR_OUT_OF_MEMORY"},
		{Driver, 100, "CUDA_ERROR_NO_DEVICE"},
		{Driver, 999, "CUDA_ERROR_UNKNOWN"},
		{Runtime, 0, "cudaSuccess"},
		{Runtime, 2, "cudaErrorMemoryAllocation"},
		{Runtime, 719, "cudaErrorLaunchFailure"},
		{Driver, 12345, "CUresult 12345"},
		{Runtime, -1, "cudaError_t -1"},
		{"", 7, "error 7"},
	} {
		if got := ResultName(c.lib, c.code); got != c.want {
			t.Errorf("%s %d is %q, want %q", c.lib, c.code, got, c.want)
		}
	}
}

// TestRowsAreFresh: a caller that changes its copy must not change the table.
func TestRowsAreFresh(t *testing.T) {
	Rows()[0].Name = "changed"
	if slices.ContainsFunc(Rows(), func(r Row) bool { return r.Name == "changed" }) {
		t.Error("Rows hands out the table itself")
	}
	if _, ok := Match("cuInit"); !ok {
		t.Error("cuInit is gone")
	}
}
