package symbol_test

import (
	"debug/elf"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// split makes a stripped library and its debug file.
func split(t *testing.T, flags ...string) (whole, stripped, debug string) {
	t.Helper()
	whole = compile(t, "lib.c", flags...)
	dir := t.TempDir()
	stripped, debug = filepath.Join(dir, "libx.so"), filepath.Join(dir, "libx.so.debug")
	run(t, "objcopy", "--only-keep-debug", whole, debug)
	run(t, "objcopy", "--strip-all", "--add-gnu-debuglink="+debug, whole, stripped)
	return whole, stripped, debug
}

func buildID(t *testing.T, path string) string {
	t.Helper()
	f, err := elf.Open(path)
	must.NoError(t, err)
	defer f.Close()
	b, err := f.Section(".note.gnu.build-id").Data()
	must.NoError(t, err)
	return hex.EncodeToString(b[16:])
}

func TestDebugFile(t *testing.T) {
	whole, stripped, debug := split(t)
	bare, bareStripped, bareDebug := split(t, "-Wl,--build-id=none")
	_, _, other := split(t, "-DOTHER", "-O2")
	id := buildID(t, whole)
	byID := "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
	// The same debug file, but what its checksum is of has changed.
	damaged := filepath.Join(t.TempDir(), "damaged")
	copyFile(t, bareDebug, damaged)
	if f, err := os.OpenFile(damaged, os.O_APPEND|os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	} else {
		if _, err := f.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	tests := []struct {
		name, whole, lib, debug, at, want string
	}{
		{"by build id", whole, stripped, debug, byID, "hidden_helper"},
		{"by link, beside", whole, stripped, debug, "/opt/lib/libx.so.debug", "hidden_helper"},
		{"by link, in .debug", whole, stripped, debug, "/opt/lib/.debug/libx.so.debug", "hidden_helper"},
		{"by link, in the debug root", whole, stripped, debug, "/usr/lib/debug/opt/lib/libx.so.debug", "hidden_helper"},
		{"by checksum", bare, bareStripped, bareDebug, "/opt/lib/libx.so.debug", "hidden_helper"},
		{"none", whole, stripped, "", "", ""},
		{"elsewhere", whole, stripped, debug, "/tmp/libx.so.debug", ""},
		{"of another build", whole, stripped, other, byID, ""},
		{"of another build, by link", whole, stripped, other, "/opt/lib/libx.so.debug", ""},
		{"of another checksum", bare, bareStripped, damaged, "/opt/lib/libx.so.debug", ""},
		{"no debug file at all", whole, stripped, "testdata/lib.c", byID, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			copyFile(t, tt.lib, filepath.Join(root, "opt/lib/libx.so"))
			if tt.debug != "" {
				copyFile(t, tt.debug, filepath.Join(root, tt.at))
			}
			table := symbol.New(symbol.Options{})
			m := rooted(root, "/opt/lib/libx.so")
			if got := table.Resolve(m, address(t, tt.whole, "hidden_helper")); got.Name != tt.want {
				t.Errorf("a local function is %+v, want %q", got, tt.want)
			}
			// Whatever the debug file is, the file's own symbols are there.
			if got := table.Resolve(m, address(t, tt.whole, "exported_one")); got.Name != "exported_one" {
				t.Errorf("an export is %+v", got)
			}
		})
	}
}

// A debug file that was replaced by another after its index was made is not asked.
func TestDebugFileReplaced(t *testing.T) {
	whole, stripped, debug := split(t)
	root := t.TempDir()
	copyFile(t, stripped, filepath.Join(root, "opt/lib/libx.so"))
	at := filepath.Join(root, "opt/lib/libx.so.debug")
	copyFile(t, debug, at)
	table := symbol.New(symbol.Options{})
	m := rooted(root, "/opt/lib/libx.so")
	if got := table.Resolve(m, address(t, whole, "hidden_helper")); got.Name != "hidden_helper" {
		t.Fatalf("%+v", got)
	}
	must.NoError(t, os.Remove(at))
	copyFile(t, "testdata/lib.c", at)
	if got := table.Resolve(m, address(t, whole, "no_size")); got.Name != "" {
		t.Errorf("%+v", got)
	}
}

// mini makes a stripped library whose local functions are in .gnu_debugdata, as
// Fedora's are made.
func mini(t *testing.T) (whole, packed string) {
	t.Helper()
	whole, stripped, _ := split(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "mini")
	keep := filepath.Join(dir, "keep")
	write(t, keep, []byte("hidden_helper\n"))
	run(t, "objcopy", "-S", "--remove-section", ".gdb_index", "--remove-section", ".comment",
		"--keep-symbols="+keep, whole, data)
	run(t, "xz", "-k", data)
	packed = filepath.Join(dir, "libx.so")
	run(t, "objcopy", "--remove-section", ".gnu_debuglink", "--add-section",
		".gnu_debugdata="+data+".xz", stripped, packed)
	return whole, packed
}

func TestMiniDebugInfo(t *testing.T) {
	whole, packed := mini(t)
	table := symbol.New(symbol.Options{})
	m := module(packed)
	m.Beside = nil
	for _, name := range []string{"hidden_helper", "exported_one"} {
		if got := table.Resolve(m, address(t, whole, name)); got.Name != name || got.Offset != 0 {
			t.Errorf("%s is %+v", name, got)
		}
	}
	if s := table.Stats(); s.Bytes > 4096 {
		t.Errorf("what was unpacked is kept: %+v", s)
	}
}

// A damaged .gnu_debugdata costs what it says, not the exports.
func TestMiniDebugInfoDamaged(t *testing.T) {
	whole, packed := mini(t)
	b, err := os.ReadFile(packed)
	must.NoError(t, err)
	f, err := elf.Open(packed)
	must.NoError(t, err)
	s := f.Section(".gnu_debugdata")
	f.Close()
	// The size of the dictionary, in the first block's header: 4 GiB.
	for name, change := range map[string]func(b []byte){
		"cut":    func(b []byte) { clear(b[s.Offset+s.Size/2:][:64]) },
		"no xz":  func(b []byte) { b[s.Offset] = 0 },
		"header": func(b []byte) { b[s.Offset+16] = 40 },
	} {
		changed := append([]byte(nil), b...)
		change(changed)
		path := filepath.Join(t.TempDir(), "libx.so")
		write(t, path, changed)
		m := module(path)
		m.Beside = nil
		table := symbol.New(symbol.Options{})
		if got := table.Resolve(m, address(t, whole, "exported_one")); got.Name != "exported_one" {
			t.Errorf("%s: %+v", name, got)
		}
		if got := table.Resolve(m, address(t, whole, "hidden_helper")); got.Name != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
