package agent_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/agent"
)

// imports are all that the agent may want of its host: nothing else of libc, nothing with a version.
func imports(arch string) []string {
	all := []string{
		"__cxa_atexit", "__errno_location", "clock_gettime", "dl_iterate_phdr", "dlopen", "dlsym", "free",
		"pthread_create", "pthread_detach",
	}
	if arch == "amd64" { // asked for whether libc is glibc, whose thread structure is known
		all = append(all, "gnu_get_libc_version")
	}
	slices.Sort(all)
	return all
}

func images(t *testing.T) map[string]elf.Machine {
	t.Helper()
	return map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
}

func open(t *testing.T, arch string) (*elf.File, []byte) {
	t.Helper()
	image, err := agent.Image(arch)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	return f, image
}

// TestImagesDependOnNothing looks at everything in the ELF files that could disturb a process they are loaded into.
func TestImagesDependOnNothing(t *testing.T) {
	for arch, machine := range images(t) {
		f, image := open(t, arch)
		if f.Machine != machine || f.Type != elf.ET_DYN || len(image) >= 64<<10 {
			t.Errorf("%s: machine %v, type %v, %d bytes; want a shared object under 64 KiB",
				arch, f.Machine, f.Type, len(image))
		}
		for _, tag := range []elf.DynTag{
			elf.DT_NEEDED, elf.DT_VERNEED, elf.DT_TEXTREL, elf.DT_RPATH, elf.DT_RUNPATH, elf.DT_FINI, elf.DT_FINI_ARRAY,
		} {
			if v, err := f.DynValue(tag); err != nil || len(v) > 0 {
				t.Errorf("%s: it has %v: %v %v", arch, tag, v, err)
			}
		}
		if v, _ := f.DynValue(elf.DT_FLAGS_1); len(v) == 0 || elf.DynFlag1(v[0])&elf.DF_1_NOW == 0 {
			t.Errorf("%s: symbols are not all bound when it is loaded", arch)
		}
		checkSegments(t, arch, f)
		checkImports(t, arch, f)
	}
}

func checkSegments(t *testing.T, arch string, f *elf.File) {
	t.Helper()
	relro := false
	for _, p := range f.Progs {
		relro = relro || p.Type == elf.PT_GNU_RELRO
		if p.Type == elf.PT_TLS || p.Type == elf.PT_INTERP {
			t.Errorf("%s: it has a segment of type %v", arch, p.Type)
		}
		if (p.Type == elf.PT_LOAD || p.Type == elf.PT_GNU_STACK) && p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0 {
			t.Errorf("%s: a segment can be written and run", arch)
		}
	}
	if f.Section(".note.gnu.property") == nil {
		t.Errorf("%s: a process that insists on marked branch targets cannot load it", arch)
	}
	if !relro || f.Section(".eh_frame") == nil {
		t.Errorf("%s: RELRO %v, unwind tables %v; want both", arch, relro, f.Section(".eh_frame") != nil)
	}
}

func checkImports(t *testing.T, arch string, f *elf.File) {
	t.Helper()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var wanted, given []string
	for _, s := range symbols {
		switch {
		case s.Section == elf.SHN_UNDEF:
			wanted = append(wanted, s.Name)
		case elf.ST_VISIBILITY(s.Other) != elf.STV_PROTECTED:
			t.Errorf("%s: %s could be replaced by another library's", arch, s.Name)
			fallthrough
		default:
			given = append(given, s.Name)
		}
	}
	slices.Sort(wanted)
	slices.Sort(given)
	if !slices.Equal(wanted, imports(arch)) {
		t.Errorf("%s: it imports %q, want %q", arch, wanted, imports(arch))
	}
	if want := []string{"InitializeInjection", "inferscope_params", "inferscope_start"}; !slices.Equal(given, want) {
		t.Errorf("%s: it exports %q, want %q", arch, given, want)
	}
}

// TestDescribe checks the layout against the bytes that lie there.
func TestDescribe(t *testing.T) {
	for arch := range images(t) {
		f, image := open(t, arch)
		l, err := agent.Describe(image)
		if err != nil {
			t.Fatal(err)
		}
		p := image[l.Params : l.Params+l.ParamsSize]
		if binary.LittleEndian.Uint32(p) != 0x41534e49 || binary.LittleEndian.Uint32(p[4:]) != abi ||
			int32(binary.LittleEndian.Uint32(p[8:])) != -1 {
			t.Errorf("%s: parameters begin with %x", arch, p[:12])
		}
		if l.ParamsSize != paramsLength {
			t.Errorf("%s: parameters take %d bytes, want %d", arch, l.ParamsSize, paramsLength)
		}
		text := f.Section(".text")
		if l.Start < text.Addr || l.Start >= text.Addr+text.Size {
			t.Errorf("%s: the entry %#x is not in the code", arch, l.Start)
		}
		if id, err := hex.DecodeString(l.BuildID); err != nil || len(id) != 20 {
			t.Errorf("%s: build id %q", arch, l.BuildID)
		}
	}
}

func TestNoImageForOtherArchitectures(t *testing.T) {
	if _, err := agent.Image("riscv64"); !errors.Is(err, agent.ErrNoImage) {
		t.Errorf("Image says %v, want ErrNoImage", err)
	}
	if _, err := agent.Describe([]byte("no ELF")); err == nil {
		t.Error("Describe takes what is no ELF file")
	}
}

// TestImagesAreWhatTheSourcesMake compiles the sources in another folder, and compares every byte.
func TestImagesAreWhatTheSourcesMake(t *testing.T) {
	for _, tool := range []string{"clang-19", "ld.lld-19", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs tool %s: %v", tool, err)
		}
	}
	if v, _ := exec.Command("clang-19", "-dumpversion").Output(); string(bytes.TrimSpace(v)) != "19.1.7" {
		t.Skipf("the committed images were made by clang 19.1.7, and this is %s", v)
	}
	dir := t.TempDir()
	if text, err := exec.Command("bash", "../scripts/agent.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("scripts/agent.sh: %v\n%s", err, text)
	}
	for arch := range images(t) {
		_, want := open(t, arch)
		got, err := os.ReadFile(filepath.Join(dir, "agent_"+arch+".so"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the sources make another image than the committed one (%v): run 'make generate'", arch, err)
		}
	}
}

// TestSetCUPTI: the path is where the agent reads it, the last of its parameters, and nothing else changes.
func TestSetCUPTI(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := agent.Image(arch)
		if err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(image)
		l, err := agent.Describe(image)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/opt/cuda/lib64/libcupti.so.13", "/a", strings.Repeat("x", 479), ""} {
			if err := agent.SetCUPTI(image, path); err != nil {
				t.Fatal(err)
			}
			end := l.Params + l.ParamsSize
			if got := string(bytes.TrimRight(image[end-480:end], "\x00")); got != path {
				t.Errorf("%s: %q, want %q", arch, got, path)
			}
		}
		if !bytes.Equal(image, before) {
			t.Errorf("%s: something else was changed", arch)
		}
		if err := agent.SetCUPTI(image, strings.Repeat("x", 480)); err == nil {
			t.Errorf("%s: a path without room for its end was taken", arch)
		}
	}
}
