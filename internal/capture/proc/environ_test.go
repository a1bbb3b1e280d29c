package proc

import (
	"io"
	"os"
	"strings"
	"testing"
)

// endless yields the same bytes for ever, and counts them.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, strings.Repeat(e.text, len(p)/len(e.text)+1))
	e.read += n
	return n, nil
}

func TestFindVariable(t *testing.T) {
	for _, tt := range []struct {
		name, environ, value string
		set                  bool
	}{
		{"the first", "A=1\x00B=2\x00", "1", true},
		{"another", "XA=0\x00B=2\x00A=x=y\x00", "x=y", true},
		{"not closed", "B=2\x00A=3", "3", true},
		{"empty", "A=\x00", "", true},
		{"none", "B=2\x00", "", false},
		{"nothing at all", "", "", false},
		{"part of a long one", "B=" + strings.Repeat("x", maxVariable-2) + "A=1\x00", "", false},
		{"behind a long one", "B=" + strings.Repeat("x", 3*maxVariable) + "\x00A=1\x00", "1", true},
		{"too long", "A=" + strings.Repeat("x", maxVariable) + "\x00", "", false},
		{"too far", strings.Repeat("B\x00", maxEnviron/2) + "A=1\x00", "", false},
	} {
		value, set, err := findVariable(strings.NewReader(tt.environ), "A")
		if value != tt.value || set != tt.set || err != nil {
			t.Errorf("%s: %.20q, %v, %v; want %.20q, %v", tt.name, value, set, err, tt.value, tt.set)
		}
	}
	e := &endless{text: "x"}
	if _, set, err := findVariable(e, "A"); set || err != nil || e.read > maxEnviron {
		t.Errorf("of an endless one %d bytes were read, want at most %d (%v, %v)", e.read, maxEnviron, set, err)
	}
	if _, _, err := findVariable(io.MultiReader(strings.NewReader("B=1\x00"), errReader{}), "A"); err == nil {
		t.Error("an error while reading is lost")
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, os.ErrPermission }

func TestVariable(t *testing.T) {
	t.Setenv("INFERSCOPE_TEST_VARIABLE", "here")
	v := newVictim(t)
	value, set, err := Variable(uint32(v.pid), "INFERSCOPE_TEST_VARIABLE")
	if value != "here" || !set || err != nil {
		t.Errorf("Variable = %q, %v, %v", value, set, err)
	}
	if _, _, err := Variable(1<<22, "X"); err == nil {
		t.Error("a process that is not there has an environment")
	}
}
