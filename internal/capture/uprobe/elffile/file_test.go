package elffile_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

func read(b []byte) (*elffile.File, []elffile.Function, error) {
	f, err := elffile.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, nil, err
	}
	fns, err := f.Functions()
	return f, fns, err
}

func TestFunctions(t *testing.T) {
	for _, gnu := range []bool{false, true} {
		im := good()
		if im.gnu = gnu; gnu {
			// One bucket, first symbol 1, one bloom word; the chain ends at the last symbol.
			im.hash = []uint32{1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1}
		}
		f, fns, err := read(im.bytes())
		must.NoError(t, err)
		if f.Machine != elf.EM_X86_64 || f.SONAME != "libgood.so.1" || f.BuildID != "deadbeef" {
			t.Errorf("machine %s, SONAME %q, build id %q", f.Machine, f.SONAME, f.BuildID)
		}
		want := []elffile.Function{
			{Name: "alpha", Addr: base + codeAt, Offset: codeAt, Size: 8, Code: im.code[:8]},
			{
				Name:     "beta",
				Addr:     base + codeAt + 0x10,
				Offset:   codeAt + 0x10,
				Size:     0x100000,
				Indirect: true,
				Code:     im.code[0x10 : 0x10+elffile.CodeBytes],
			},
			{Name: "gamma", Addr: base + codeAt + 0x1f0, Offset: codeAt + 0x1f0, Code: im.code[0x1f0:]},
		}
		if diff := cmp.Diff(want, fns); diff != "" {
			t.Errorf("GNU hash %v (-want +got):\n%s", gnu, diff)
		}
		some, err := f.Named(func(name string) bool { return name != "beta" })
		if diff := cmp.Diff([]elffile.Function{want[0], want[2]}, some); diff != "" || err != nil {
			t.Errorf("GNU hash %v, all but beta: %v (-want +got):\n%s", gnu, err, diff)
		}
	}
}

func TestRefused(t *testing.T) {
	const huge = 1<<64 - 8
	tests := []struct {
		name   string
		change func(*image)
		want   error
	}{
		{"no magic", func(im *image) { im.ident[0] = 0 }, elffile.ErrNotELF},
		{"32 bits", func(im *image) { im.ident[elf.EI_CLASS] = byte(elf.ELFCLASS32) }, elffile.ErrUnsupported},
		{"big endian", func(im *image) { im.ident[elf.EI_DATA] = byte(elf.ELFDATA2MSB) }, elffile.ErrUnsupported},
		{"another machine", func(im *image) { im.machine = elf.EM_RISCV }, elffile.ErrUnsupported},
		{"a core file", func(im *image) { im.kind = elf.ET_CORE }, elffile.ErrUnsupported},
		{"no dynamic section", func(im *image) { im.phnum = 2 }, elffile.ErrUnsupported},
		{"program headers too many", func(im *image) { im.phnum = 65535 }, elffile.ErrTooLarge},
		{"program headers beyond the file", func(im *image) { im.phoff = imageSize - 8 }, elffile.ErrTruncated},
		{"program headers at the end of the world", func(im *image) { im.phoff = huge }, elffile.ErrTruncated},
		{"program headers of another size", func(im *image) { im.phentsize = 1 }, elffile.ErrMalformed},
		{"names too many", func(im *image) { im.set(elf.DT_STRSZ, 1<<40) }, elffile.ErrTooLarge},
		{"names beyond their segment", func(im *image) { im.set(elf.DT_STRSZ, 0x1000) }, elffile.ErrMalformed},
		{"names outside", func(im *image) { im.set(elf.DT_STRTAB, huge) }, elffile.ErrMalformed},
		{"symbols outside", func(im *image) { im.set(elf.DT_SYMTAB, 8) }, elffile.ErrMalformed},
		{"symbols of another size", func(im *image) { im.set(elf.DT_SYMENT, 0) }, elffile.ErrMalformed},
		{"symbols too many", func(im *image) { im.hash[1] = 1<<32 - 1 }, elffile.ErrTooLarge},
		{"symbols beyond their segment", func(im *image) { im.hash[1] = 1000 }, elffile.ErrMalformed},
		{"hash table outside", func(im *image) { im.set(elf.DT_HASH, huge) }, elffile.ErrMalformed},
		{"no hash table", func(im *image) { im.dynamic = im.dynamic[:5] }, elffile.ErrMalformed},
		{
			"GNU buckets too many",
			func(im *image) { im.gnu, im.hash = true, []uint32{1<<32 - 1, 1, 1, 0} },
			elffile.ErrTooLarge,
		},
		{
			"GNU bloom too large",
			func(im *image) { im.gnu, im.hash = true, []uint32{1, 1, 1<<32 - 1, 0} },
			elffile.ErrTooLarge,
		},
		{
			"GNU chain that does not end",
			func(im *image) { im.gnu, im.hash = true, []uint32{1, 1, 0, 0, 1 << 30} },
			elffile.ErrTooLarge,
		},
		{
			"GNU chain beyond its segment",
			func(im *image) { im.gnu, im.hash = true, []uint32{1, 1, 0, 0, 1 << 16} },
			elffile.ErrMalformed,
		},
		{"code beyond the file", func(im *image) { im.loads[0].Off = imageSize }, elffile.ErrTruncated},
		{"a segment around the end of the world", func(im *image) { im.loads[0].Off = huge }, elffile.ErrTruncated},
		{"a segment longer than the file", func(im *image) { im.loads[1].Filesz = 1 << 50 }, elffile.ErrTruncated},
		{"a segment as long as the world", func(im *image) { im.loads[1].Filesz = 1<<64 - 1 }, elffile.ErrTruncated},
		{"notes beyond the file", func(im *image) { im.loads[2].Off = huge }, elffile.ErrTruncated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			im := good()
			tt.change(im)
			_, _, err := read(im.bytes())
			if !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

// What is merely odd costs the odd part, not the rest.
func TestOdd(t *testing.T) {
	tests := []struct {
		name   string
		change func(*image)
		names  string
	}{
		{
			"overlapping segments",
			func(im *image) { im.loads = append(im.loads, im.loads[1], im.loads[1]) },
			"alpha beta gamma",
		},
		{"a symbol beyond the segment", func(im *image) { im.symbols[2].Value = 1 << 63 }, "beta gamma"},
		{"a segment at the highest addresses", func(im *image) {
			im.loads = append(
				im.loads,
				elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X), Vaddr: 1<<64 - 1, Filesz: imageSize},
			)
		}, "alpha beta gamma"},
		{"a name outside", func(im *image) { im.symbols[2].Name = 1 << 31 }, "beta gamma"},
		{
			"a name that does not end",
			func(im *image) { im.strings = strings.ReplaceAll(im.strings, "outside\x00", "outside!") },
			"alpha beta gamma",
		},
		{
			"a name with a newline",
			func(im *image) { im.strings = strings.ReplaceAll(im.strings, "alpha", "al\nha") },
			"beta gamma",
		},
		{"no code may be run", func(im *image) { im.loads[1].Flags = uint32(elf.PF_R) }, ""},
		{"a note that claims more than there is", func(im *image) { im.note[4] = 0xff }, "alpha beta gamma"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			im := good()
			tt.change(im)
			_, fns, err := read(im.bytes())
			must.NoError(t, err)
			var names []string
			for _, fn := range fns {
				names = append(names, fn.Name)
			}
			if got := strings.Join(names, " "); got != tt.names {
				t.Errorf("%q, want %q", got, tt.names)
			}
		})
	}
}

// Every prefix of the file is an error, and one that says so.
func TestTruncated(t *testing.T) {
	b := good().bytes()
	for n := range b {
		_, _, err := read(b[:n])
		switch {
		case n < 16 && !errors.Is(err, elffile.ErrNotELF),
			n >= 16 && !errors.Is(err, elffile.ErrTruncated):
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	// The file shrinks while it is read.
	if _, err := elffile.Open(bytes.NewReader(b[:100]), imageSize); !errors.Is(err, elffile.ErrTruncated) {
		t.Errorf("shrunk file: %v", err)
	}
}

// debug/elf must agree about real libraries, with either hash table and without
// section headers.
func TestAgainstDebugELF(t *testing.T) {
	for name, path := range realLibraries(t) {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(path)
			must.NoError(t, err)
			want := exported(t, b)
			copy(b[0x28:], make([]byte, 8))          // e_shoff
			binary.LittleEndian.PutUint32(b[60:], 0) // e_shnum, e_shstrndx
			f, fns, err := read(b)
			must.NoError(t, err)
			var got []string
			for _, fn := range fns {
				got = append(got, fn.Name)
				if len(fn.Code) == 0 || !bytes.HasPrefix(b[fn.Offset:], fn.Code) {
					t.Errorf("%s: code is not what stands at offset %#x", fn.Name, fn.Offset)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
				t.Errorf("exported functions (-debug/elf +elffile):\n%s", diff)
			}
			t.Logf("SONAME %s, build id %s, %d functions", f.SONAME, f.BuildID, len(fns))
		})
	}
}

func exported(t *testing.T, b []byte) []string {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(b))
	must.NoError(t, err)
	syms, err := f.DynamicSymbols()
	must.NoError(t, err)
	var names []string
	for _, s := range syms {
		kind, bind := elf.ST_TYPE(s.Info), elf.ST_BIND(s.Info)
		if s.Section != elf.SHN_UNDEF && (kind == elf.STT_FUNC || kind == elf.STT_GNU_IFUNC) &&
			(bind == elf.STB_GLOBAL || bind == elf.STB_WEAK) {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func realLibraries(t *testing.T) map[string]string {
	t.Helper()
	cc := needs.Tool(t, "cc")
	dir := t.TempDir()
	src := filepath.Join(dir, "x.c")
	if err := os.WriteFile(
		src,
		[]byte(
			"int one(void){return 1;}\nint two(void){return 2;}\n__attribute__((weak)) int three(void){return 3;}\n",
		),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	libs := map[string]string{}
	for _, style := range []string{"sysv", "gnu", "both"} {
		out := filepath.Join(dir, style+".so")
		if msg, err := exec.Command(
			cc, "-shared", "-fPIC", "-Wl,-soname,libx.so.1,--build-id,--hash-style="+style, "-o", out, src,
		).CombinedOutput(); err != nil {
			t.Skipf("cc: %v\n%s", err, msg)
		}
		libs[style] = out
	}
	if path, err := exec.Command(cc, "-print-file-name=libc.so.6").Output(); err == nil &&
		filepath.IsAbs(string(path)) {
		libs["libc"] = strings.TrimSpace(string(path))
	}
	return libs
}

// FuzzOpen: no input may panic, or make more of a file than is in it.
func FuzzOpen(f *testing.F) {
	b := good().bytes()
	f.Add(b)
	f.Add(b[:codeAt])
	f.Add([]byte("\x7fELF"))
	for _, change := range []func(*image){
		func(im *image) { im.gnu, im.hash = true, []uint32{1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1} },
		func(im *image) { im.loads[1].Filesz = 1 << 62 },
		func(im *image) { im.hash[1] = 1 << 16 },
		func(im *image) { im.phnum = 256 },
		func(im *image) { im.loads = append(im.loads, im.loads...) },
	} {
		im := good()
		change(im)
		f.Add(im.bytes())
	}
	fuzzing.Run(f, func(t *testing.T, b []byte) {
		file, fns, err := read(b)
		if err != nil {
			return
		}
		if file.Machine != elf.EM_X86_64 && file.Machine != elf.EM_AARCH64 {
			t.Fatalf("machine %s", file.Machine)
		}
		for _, fn := range fns {
			if fn.Offset >= uint64(len(b)) || len(fn.Code) > elffile.CodeBytes ||
				!bytes.HasPrefix(b[fn.Offset:], fn.Code) ||
				fn.Name == "" {
				t.Fatalf("%+v of a file of %d bytes", fn, len(b))
			}
		}
	})
}
