package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestPackages makes the packages twice: they hold what a user needs, and are the same byte for byte.
func TestPackages(t *testing.T) {
	tool(t, "nfpm")
	deb, err := exec.LookPath("dpkg-deb")
	if err != nil {
		t.Skip("needs tool dpkg-deb")
	}
	var sums [2][]byte
	var dir string
	for i := range sums {
		dir = t.TempDir()
		cmd := exec.CommandContext(t.Context(), "../scripts/package.sh")
		cmd.Env = append(os.Environ(), "DIST="+dir, "VERSION=v1.2.3", "GOARCH=amd64", "SOURCE_DATE_EPOCH=1700000000")
		must.Run(t, cmd)
		if sums[i], err = os.ReadFile(filepath.Join(dir, "SHA256SUMS")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(sums[0], sums[1]) || bytes.Count(sums[0], []byte("\n")) != 2 {
		t.Errorf("made twice they are not the same:\n%s%s", sums[0], sums[1])
	}
	path := filepath.Join(dir, "inferscope_1.2.3_amd64.deb")
	list, err := exec.CommandContext(t.Context(), deb, "-c", path).Output()
	must.NoError(t, err)
	for _, file := range []string{
		"./usr/bin/inferscope\n", "./usr/bin/inferscoped\n", "./usr/lib/systemd/system/inferscoped.service\n",
		"./usr/share/man/man1/inferscope-report.1.gz\n", "./usr/share/man/man1/inferscoped.1.gz\n",
		"./usr/share/bash-completion/completions/inferscope\n",
		"./usr/share/zsh/vendor-completions/_inferscope\n", "./usr/share/doc/inferscope/copyright\n",
	} {
		if !strings.Contains(string(list), file) {
			t.Errorf("no %q in\n%s", file, list)
		}
	}
	must.Run(t, exec.CommandContext(t.Context(), deb, "-x", path, dir))
	if text := read(t, filepath.Join(dir, "usr/lib/systemd/system/inferscoped.service")); !strings.Contains(
		text,
		"ExecStart=/usr/bin/inferscoped ",
	) {
		t.Errorf("the unit starts another program:\n%s", text)
	}
	tries(t, filepath.Join(dir, "usr/bin"), "v1.2.3")
}
