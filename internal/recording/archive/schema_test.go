package archive

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestFieldsHoldEveryBit: each bit of an event but its kind is in exactly one column of each table.
func TestFieldsHoldEveryBit(t *testing.T) {
	for _, table := range eventTables() {
		var seen [8]uint64
		names := map[string]bool{}
		for _, f := range table.fields {
			bits := f.mask() << f.shift
			if seen[f.word]&bits != 0 {
				t.Errorf("%s.%s holds bits that another column holds", table.name, f.name)
			}
			if names[f.name] || f.doc == "" {
				t.Errorf("%s.%s: twice, or without a word of what it is", table.name, f.name)
			}
			seen[f.word] |= bits
			names[f.name] = true
			if f.bits == 64 != (f.kind == int64Kind || f.kind == uint64Kind) && f.kind != int64Kind {
				t.Errorf("%s.%s of %d bits does not fit its type", table.name, f.name, f.bits)
			}
		}
		for w, bits := range seen {
			want := uint64(math.MaxUint64)
			if w == wordHead && table.kind != event.None {
				want &^= 0xff << kindShift
			}
			if bits != want {
				t.Errorf("%s: word %d has bits %x in columns, want %x", table.name, w, bits, want)
			}
		}
	}
}

func TestFieldsGiveBackWhatTheyTook(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		for _, table := range eventTables() {
			e := event.Event{
				TS:    r.Uint64(),
				Dur:   r.Uint64(),
				PID:   r.Uint32(),
				TID:   r.Uint32(),
				Func:  uint16(r.Uint32()),
				Kind:  table.kind,
				Flags: event.Flags(r.Uint32()),
				Ret:   int32(r.Uint32()),
				Args:  [4]uint64{r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64()},
			}
			if table.kind == event.None {
				e.Kind = event.Kind(r.Uint32())
			}
			got := event.Event{Kind: table.kind}
			for i := range table.fields {
				table.fields[i].set(&got, table.fields[i].get(&e))
			}
			if got != e {
				t.Fatalf("%s: %+v became %+v", table.name, e, got)
			}
		}
	}
}

// TestEveryTableOfMetaIsWritten: whoever adds a table to a recording has to add it here too.
func TestEveryTableOfMetaIsWritten(t *testing.T) {
	gpu := reflect.TypeFor[recording.GPU]()
	meta := reflect.TypeFor[recording.Meta]()
	slices := 0
	for _, typ := range []reflect.Type{gpu, meta} {
		for i := range typ.NumField() {
			if typ.Field(i).Type.Kind() == reflect.Slice {
				slices++
			}
		}
	}
	if got := len(nameTables()) - 2; got != slices { // numa_pages is a part of Pressure, codes is the same in all
		t.Errorf("%d tables of names for %d tables of a recording", got, slices)
	}
	if meta.NumField()-15 != 12 || reflect.TypeFor[recording.Pressure]().NumField() != 8 ||
		reflect.TypeFor[recording.Function]().NumField() != 5 ||
		reflect.TypeFor[recording.Frame]().NumField() != 4 ||
		reflect.TypeFor[recording.Kernel]().NumField() != 4 ||
		reflect.TypeFor[recording.Host]().NumField() != 5 {
		t.Errorf(
			"a type of package record has other fields (Meta %d): write them as well, then change this test",
			meta.NumField(),
		)
	}
}

// overviewBegin is where the generated part of docs/recordings.md begins.
const overviewBegin = "## Tables\n"

// overview returns the list of tables at the end of docs/recordings.md.
func overview() string {
	var b strings.Builder
	b.WriteString(
		overviewBegin +
			"\n`inferscope ls --columns` describes every column.\n\n| table of events | rows |\n|---|---|\n",
	)
	for _, t := range eventTables() {
		fmt.Fprintf(&b, "| %s | %s |\n", t.name, t.doc)
	}
	b.WriteString("\n| table of names and states | rows |\n|---|---|\n")
	for _, t := range nameTables() {
		fmt.Fprintf(&b, "| %s | %s |\n", t.name, t.doc)
	}
	return b.String()
}

// TestDocumentationNamesEveryTable holds docs/recordings.md against the code.
func TestDocumentationNamesEveryTable(t *testing.T) {
	text, err := os.ReadFile("../../../docs/recordings.md")
	must.NoError(t, err)
	if want := overview(); !strings.HasSuffix(string(text), want) {
		if os.Getenv("UPDATE") == "" {
			t.Fatal(
				"docs/recordings.md lacks a table: run UPDATE=1 go test ./internal/recording/archive -run " +
					"Documentation",
			)
		}
		before, _, found := strings.Cut(string(text), overviewBegin)
		if !found {
			t.Fatal("docs/recordings.md has no place for the tables")
		}
		must.NoError(t, os.WriteFile("../../../docs/recordings.md", []byte(before+want), 0o644))
	}
}

// TestDocumentNamesEveryColumn: each column of each table has a line, its own or the one that tables share.
func TestDocumentNamesEveryColumn(t *testing.T) {
	text := Document()
	for _, name := range []string{"calls", "kernels", "thread_states", "requests", "gpu_windows", "attributes"} {
		if !strings.Contains(text, "\n### "+name+"\n") {
			t.Errorf("table %s is not described", name)
		}
		for _, c := range Columns(name) {
			described := strings.Contains(text, "\n- `"+c.Name+"` "+c.Type+": ")
			if !described && !strings.Contains(text, "Unused: "+c.Name) && !strings.Contains(text, ", "+c.Name) {
				t.Errorf("%s.%s is not described", name, c.Name)
			}
		}
	}
}

// TestNumbersHaveNames: each column of an event table that holds one of a few numbers has a row of codes for each
// number that its description names, and codes speak of columns that there are, once.
func TestNumbersHaveNames(t *testing.T) {
	named := map[string]int{}
	seen := map[codeRow]bool{}
	for _, r := range codeRows() {
		named[r.Table+"."+r.Column]++
		r.Name = ""
		if seen[r] {
			t.Errorf("%+v twice", r)
		}
		seen[r] = true
	}
	numbers := regexp.MustCompile(`enum [a-z_]+|CUpti_[A-Za-z]+Kind|CUpti_[A-Za-z]+Type|^0: `)
	for _, table := range eventTables() {
		for _, f := range table.fields {
			name := table.name + "." + f.name
			if numbers.MatchString(f.doc) && named[name] == 0 {
				t.Errorf("%s has numbers without names: %s", name, f.doc)
			}
			delete(named, name)
		}
	}
	for name := range named {
		t.Errorf("%s is no column", name)
	}
	if got := codesOf("copies", "copy_kind"); got[1] != "HtoD" || got[10] != "PtoP" || len(got) != 11 {
		t.Errorf("kinds of copies %v", got)
	}
	if got := codesOf("thread_states", "flags"); got[8] != "preempted" || got[128] != "open" || len(got) != 7 {
		t.Errorf("flags of thread_states %v", got)
	}
}

func codesOf(table, column string) map[int32]string {
	names := map[int32]string{}
	for _, r := range codeRows() {
		if r.Table == table && r.Column == column {
			names[r.Value] = r.Name
		}
	}
	return names
}
