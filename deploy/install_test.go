package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// installed is this module in a version that a proxy has.
var installed = module.Version{Path: "github.com/inferscope/inferscope", Version: "v0.0.1"}

// proxy makes the folder of a module proxy that has the last commit as a release, and returns its address.
func proxy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	release := filepath.Join(dir, installed.Path, "@v", installed.Version)
	write(t, filepath.Join(filepath.Dir(release), "list"), installed.Version+"\n")
	write(t, release+".info", `{"Version": "`+installed.Version+`"}`)
	write(t, release+".mod", read(t, "../go.mod"))
	tree := t.TempDir()
	tar := exec.Command("sh", "-c", `git -C .. archive HEAD | tar -x -C "$0"`, tree)
	must.Run(t, tar)
	f, err := os.Create(release + ".zip")
	must.NoError(t, err)
	must.NoError(t, zip.CreateFromDir(f, installed, tree))
	must.NoError(t, f.Close())
	return "file://" + dir
}

// goInstall installs both programs of the last commit as a user does, who has nothing of Go's but Go, and returns the
// folder with them.
func goInstall(t *testing.T) string {
	t.Helper()
	cache, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	must.NoError(t, err)
	known := strings.Fields(string(cache))
	dir := t.TempDir()
	cmd := exec.Command("go", "install", installed.Path+"/cmd/...@"+installed.Version)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"GOPROXY="+strings.Join([]string{proxy(t), "file://" + known[0] + "/cache/download", known[1]}, ","),
		"GOSUMDB=off", "GOWORK=off", "GOPATH="+filepath.Join(dir, "gopath"), "GOMODCACHE="+filepath.Join(dir, "modules"),
		"GOBIN="+filepath.Join(dir, "bin"), "GOFLAGS=-trimpath -modcacherw", "CGO_ENABLED=0",
	)
	must.Run(t, cmd)
	return filepath.Join(dir, "bin")
}

// TestGoInstall: go install makes both programs out of what is in the last commit, and they work.
func TestGoInstall(t *testing.T) {
	needs.Long(t)
	tries(t, goInstall(t), installed.Version)
}

// tries checks that the programs of a folder are of a version and work: as root they record a program.
func tries(t *testing.T, dir, version string) {
	t.Helper()
	run := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, "inferscope"), append([]string{"--socket", "/nowhere"}, args...)...)
		cmd.Dir = t.TempDir()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("inferscope %v: %v\n%s", args, err, out)
		}
		return out
	}
	// A daemon may not answer; what is said of the program itself is what counts.
	var said struct{ Client struct{ Version string } }
	if err := json.Unmarshal(run("version", "--json"), &said); err != nil || said.Client.Version != version {
		t.Errorf("its version is %q (%v), want %s", said.Client.Version, err, version)
	}
	if os.Geteuid() != 0 {
		return
	}
	var doctor struct{ Works bool }
	if err := json.Unmarshal(run("doctor", "--json"), &doctor); err != nil || !doctor.Works {
		t.Errorf("doctor: %+v, %v", doctor, err)
	}
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "repeat 100000000 { launch 5 kernel=k_us5; sync; sleep 1ms }")
	var report struct{ Summary struct{ Operations uint64 } }
	text := run("report", "--pid", strconv.Itoa(v.PID), "--for", "2s", "--json")
	if err := json.Unmarshal(text, &report); err != nil || report.Summary.Operations == 0 {
		t.Errorf("a report with %d operations, %v", report.Summary.Operations, err)
	}
}
