package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		must.NoError(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./internal/report -update writes it)", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// goldenJSON compares a report's JSON with a file of testdata. There, what fits a line is on one, and the words of the
// table of causes are names of their rows: what is said of a cause is in one place.
func goldenJSON(t *testing.T, name string, got []byte) {
	t.Helper()
	var short, again bytes.Buffer
	must.NoError(t, json.Compact(&short, got))
	if err := json.Indent(&again, short.Bytes(), "", "  "); err != nil || again.String()+"\n" != string(got) {
		t.Errorf("%s is not indented by 2 spaces: %v", name, err)
	}
	var out strings.Builder
	d := json.NewDecoder(bytes.NewReader(got))
	d.UseNumber()
	writeFolded(&out, readFolded(t, d), "")
	golden(t, name, []byte(out.String()+"\n"))
}

// folded is a JSON value: a text, or the parts of an object or list with the brackets around them.
type folded struct {
	key, text, open, shut string
	parts                 []folded
}

func readFolded(t *testing.T, d *json.Decoder) folded {
	t.Helper()
	token, err := d.Token()
	must.NoError(t, err)
	open, nested := token.(json.Delim)
	if !nested {
		if s, ok := token.(string); ok {
			token = tableNames().name(s)
		}
		return folded{text: quoted(t, token)}
	}
	f := folded{open: open.String()}
	for d.More() {
		key := ""
		if open == '{' {
			name, err := d.Token()
			must.NoError(t, err)
			key = quoted(t, name) + ": "
		}
		part := readFolded(t, d)
		part.key = key
		f.parts = append(f.parts, part)
	}
	end, err := d.Token()
	must.NoError(t, err)
	f.shut = fmt.Sprint(end)
	return f
}

func quoted(t *testing.T, v any) string {
	t.Helper()
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	must.NoError(t, e.Encode(v))
	return strings.TrimSuffix(b.String(), "\n")
}

func (f folded) line() string {
	if f.open == "" {
		return f.key + f.text
	}
	lines := make([]string, len(f.parts))
	for i, p := range f.parts {
		lines[i] = p.line()
	}
	return f.key + f.open + strings.Join(lines, ", ") + f.shut
}

// writeFolded writes a value on one line where it fits; else its parts, short ones side by side.
func writeFolded(out *strings.Builder, f folded, indent string) {
	const columns, short = 110, 60
	if line := f.line(); f.open == "" || len(indent)+len(line) <= columns {
		out.WriteString(line)
		return
	}
	out.WriteString(f.key + f.open)
	inner := indent + "  "
	end := columns // of the line that is being written; columns where nothing goes on it any more
	for i, p := range f.parts {
		if i > 0 {
			out.WriteString(",")
		}
		length := len(p.line())
		flows := p.open == "" || length <= short
		if flows && end+len(" ")+length < columns {
			end += len(" ") + length + len(",")
			out.WriteString(" ")
		} else {
			out.WriteString("\n" + inner)
			end = columns
			if flows {
				end = len(inner) + length + len(",")
			}
		}
		writeFolded(out, p, inner)
	}
	out.WriteString("\n" + indent + f.shut)
}

// names knows the words of the table of causes.
type names struct {
	whole map[string]string
	parts *strings.Replacer
}

var tableNames = sync.OnceValue(func() names {
	n := names{whole: map[string]string{}}
	var parts []string
	add := func(words, name string) {
		if words != "" && n.whole[words] == "" {
			n.whole[words] = name
		}
	}
	for _, c := range slices.Concat(cause.All(), cause.On(2)) { // the recordings are of a host with 2 CPUs
		add(c.Title, "<"+c.Key+">")
		for i, ch := range c.Changes {
			name := fmt.Sprintf("<%s, change %d", c.Key, i+1)
			add(ch.Example, name+", example>")
			add(ch.Text, name+">")
			parts = append(parts, ch.Text, n.whole[ch.Text])
		}
	}
	n.parts = strings.NewReplacer(parts...)
	return n
})

// name returns a text with the words of the table replaced by the names of their rows.
func (n names) name(text string) string {
	if name := n.whole[text]; name != "" {
		return name
	}
	return n.parts.Replace(text)
}
