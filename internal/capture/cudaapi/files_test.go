package cudaapi

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestFilesAreReadAgain: what was read of a library, and planned for it, serves other processes, and not once the file
// is another one: replaced at its path, written again, or of another size.
func TestFilesAreReadAgain(t *testing.T) {
	image, err := os.ReadFile(filepath.Join(cudasim.Build(t).Sim, "r580", "libcuda.so.1"))
	must.NoError(t, err)
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	write := func(at string, image []byte) {
		t.Helper()
		must.NoError(t, os.WriteFile(at, image, 0o600))
	}
	var s Source
	read := func() *plan {
		t.Helper()
		file, err := os.Open(path)
		must.NoError(t, err)
		defer file.Close()
		var st unix.Stat_t
		must.NoError(t, unix.Fstat(int(file.Fd()), &st))
		contents, err := s.files.read(fileID{st.Dev, st.Ino}, file)
		must.NoError(t, err)
		plan, err := s.plan(&library{contents: contents}, cuda.Options{})
		must.NoError(t, err)
		return plan
	}
	write(path, image)
	first := read()
	if first.found == 0 || len(first.launching) == 0 || len(first.sites.waits) == 0 {
		t.Fatalf("nothing is planned for the driver: %+v", first)
	}
	if read() != first {
		t.Error("the same file is read twice")
	}
	for _, change := range []struct {
		name string
		make func()
	}{
		{"another file at its path", func() {
			write(path+".new", image)
			must.NoError(t, os.Rename(path+".new", path))
		}},
		{"written again", func() {
			must.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)))
		}},
		{"another size", func() { write(path, append(image, 0)) }},
	} {
		before := read()
		change.make()
		if read() == before {
			t.Errorf("%s: what the file held before is taken for what it holds", change.name)
		}
	}
	with, err := s.plan(&library{contents: contentsOf(&s)}, cuda.Options{Hot: true})
	must.NoError(t, err)
	if len(with.sites.plain) <= len(first.sites.plain) {
		t.Errorf("%d probes with all calls, %d without: one plan is taken for the other",
			len(with.sites.plain), len(first.sites.plain))
	}
}

// contentsOf returns any contents that are remembered.
func contentsOf(s *Source) contents {
	for _, c := range s.files.known {
		return c
	}
	return contents{}
}
