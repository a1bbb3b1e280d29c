package nvlibs

import (
	"archive/zip"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestLibraries fetches every library whose tests this repository has today and
// checks that it is what it is called.
func TestLibraries(t *testing.T) {
	soname := map[Part]string{
		Driver470: "libcuda.so.1", Driver535: "libcuda.so.1", Driver550: "libcuda.so.1", Driver555: "libcuda.so.1",
		Runtime11: "libcudart.so.11.0", Runtime12: "libcudart.so.12", Runtime13: "libcudart.so.13",
	}
	for _, part := range append(Drivers(), Runtimes()...) {
		t.Run(string(part), func(t *testing.T) {
			path := Library(t, part)
			f, err := elf.Open(path)
			must.NoError(t, err)
			defer f.Close()
			names, err := f.DynString(elf.DT_SONAME)
			if err != nil || len(names) != 1 || names[0] != soname[part] {
				t.Errorf("SONAME %q (%v), want %q", names, err, soname[part])
			}
			if major, ok := strings.CutPrefix(string(part), "libcuda-"); ok &&
				!strings.Contains(path, ".so."+major+".") {
				t.Errorf("%s is not version %s", path, major)
			}
		})
	}
}

func TestNewest(t *testing.T) {
	const listing = "  libcuda1 | 555.58.02-4 | mirror experimental/non-free amd64 Packages\n" +
		"  libcuda1 | 550.163.01-2 | mirror trixie/non-free amd64 Packages\n" +
		"  libcuda1 | 550.100.01-1 | mirror trixie/non-free amd64 Packages\n" +
		"nonsense\n"
	if v, ok := newest([]byte(listing), "550."); !ok || v != "550.163.01-2" {
		t.Errorf("newest 550 is %q, %v", v, ok)
	}
	if v, ok := newest([]byte(listing), "535."); ok {
		t.Errorf("found %q of a version that is not listed", v)
	}
}

// TestUnzipStaysInside: a wheel comes from the network.
func TestUnzipStaysInside(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "x.whl")
	f, err := os.Create(archive)
	must.NoError(t, err)
	w := zip.NewWriter(f)
	if _, err := w.Create("../escaped"); err != nil {
		t.Fatal(err)
	}
	must.NoError(t, w.Close())
	out := filepath.Join(dir, "out")
	must.NoError(t, os.Mkdir(out, 0o755))
	if err := unzip(archive, out); err == nil {
		t.Error("unpacked a name that leads out of the directory")
	}
	if exists(filepath.Join(dir, "escaped")) {
		t.Error("wrote outside of the directory")
	}
}

func TestUnknownPart(t *testing.T) {
	if _, err := fetch("libcuda-1", true); err == nil {
		t.Error("fetched a part that does not exist")
	}
}
