package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

const stream = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"run","Package":"p","Test":"TestA/two"}
{"Action":"output","Package":"p","Test":"TestA/two","Output":"    a_test.go:7: needs root: attaches probes\n"}
{"Action":"skip","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`

func TestCounts(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		args           []string
		fails          bool
	}{
		{"subtests count, their parent does not", stream, "2 passed, 0 failed, 1 skipped", nil, false},
		{"the same package twice counts twice", stream + stream, "4 passed, 0 failed, 2 skipped", nil, false},
		{
			"a forbidden skip fails", stream, "2 passed, 1 failed, 0 skipped",
			[]string{"-forbid-skips", "needs tool,needs root"},
			true,
		},
		{
			"another phrase does not", stream, "2 passed, 0 failed, 1 skipped",
			[]string{"-forbid-skips", "needs tool"},
			false,
		},
		{"nothing at all", "", "0 passed, 0 failed, 0 skipped", nil, false},
		{
			"a failed child fails once", `{"Action":"pass","Package":"p","Test":"T/a"}
{"Action":"fail","Package":"p","Test":"T/b"}
{"Action":"fail","Package":"p","Test":"T"}
{"Action":"fail","Package":"p"}
`, "1 passed, 1 failed, 0 skipped", nil, true,
		},
		{
			"a parent that fails by itself counts", `{"Action":"pass","Package":"p","Test":"T/a"}
{"Action":"fail","Package":"p","Test":"T"}
{"Action":"fail","Package":"p"}
`, "1 passed, 1 failed, 0 skipped", nil, true,
		},
		{
			"a panic fails the test that ran", `{"Action":"pass","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"B"}
{"Action":"fail","Package":"p"}
`, "1 passed, 1 failed, 0 skipped", nil, true,
		},
		{
			"a package that does not compile counts as one", `{"ImportPath":"p [p.test]","Action":"build-output","Output":"undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`, "0 passed, 1 failed, 0 skipped", nil, true,
		},
		{"a stream cut off fails", `{"Action":"run","Package":"p","Test":"B"}
`, "0 passed, 1 failed, 0 skipped", nil, true},
		{"a package without tests counts for nothing", `{"Action":"skip","Package":"p"}
`, "0 passed, 0 failed, 0 skipped", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			err := run(append(c.args, "printf", "%s", c.in), &out)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; last != c.want {
				t.Errorf("last line %q, want %q; all:\n%s", last, c.want, out.String())
			}
			if errors.Is(err, errFailed) != c.fails {
				t.Errorf("error %v, want a failure: %v", err, c.fails)
			}
		})
	}
}

// TestCrashIsShown: what a dying program said is not said by the test that failed.
func TestCrashIsShown(t *testing.T) {
	for _, where := range []string{`"Test":"T",`, ""} {
		in := `{"Action":"run","Package":"p","Test":"T"}
{"Action":"run","Package":"p","Test":"T/a"}
{"Action":"output","Package":"p","Test":"T/a","Output":"--- FAIL: T/a (0.81s)\n"}
{"Action":"fail","Package":"p","Test":"T/a"}
{"Action":"output","Package":"p",` + where + `"Output":"panic: index out of range\n"}
{"Action":"fail","Package":"p","Test":"T"}
{"Action":"fail","Package":"p"}
`
		var out strings.Builder
		tally := newTally(&out, "")
		must.NoError(t, tally.read(strings.NewReader(in)))
		if !strings.Contains(out.String(), "panic: index out of range") {
			t.Errorf("it shows %q", out.String())
		}
	}
}

func TestSkipReasonIsShown(t *testing.T) {
	var out strings.Builder
	must.NoError(t, run([]string{"printf", "%s", stream}, &out))
	if want := "p.TestA/two: needs root: attaches probes"; !strings.Contains(out.String(), want) {
		t.Errorf("output lacks %q:\n%s", want, out.String())
	}
}

func TestSteps(t *testing.T) {
	file := filepath.Join(t.TempDir(), "steps")
	write := func(text string) {
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	var out strings.Builder
	write("pass vet\nskip generate: clang 18 is here\nfail lint\n")
	if err := run([]string{"-steps", file, "printf", "%s", stream}, &out); !errors.Is(err, errFailed) {
		t.Errorf("a failed step did not fail the run: %v", err)
	}
	if !strings.HasSuffix(out.String(), "\n3 passed, 1 failed, 2 skipped\n") {
		t.Errorf("steps are not counted:\n%s", out.String())
	}
	write("perhaps vet\n")
	if err := run([]string{"-steps", file}, &out); err == nil {
		t.Error("a nonsense step was accepted")
	}
	if err := run([]string{"-steps", file + ".no"}, &out); err == nil {
		t.Error("a missing steps file was accepted")
	}
}

func TestCommandThatFailsWithoutATest(t *testing.T) {
	var out strings.Builder
	if err := run([]string{"false"}, &out); !errors.Is(err, errFailed) {
		t.Errorf("a command that failed was called %v", err)
	}
	if !strings.HasSuffix(out.String(), "\n0 passed, 1 failed, 0 skipped\n") {
		t.Errorf("its failure is not counted:\n%s", out.String())
	}
	if err := run([]string{"/nonexistent/command"}, &out); err == nil {
		t.Error("a command that does not exist was accepted")
	}
}
