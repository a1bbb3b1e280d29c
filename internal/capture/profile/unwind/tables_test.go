package unwind

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/host"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/elfunwindinfo"
	"go.opentelemetry.io/ebpf-profiler/processmanager/ebpfapi"
	"go.opentelemetry.io/ebpf-profiler/processmanager/execinfomanager"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// numbers is a plain numbering.
type numbers map[support.UnwindInfo]uint16

// Number implements numbering.
func (n numbers) Number(info support.UnwindInfo) (uint16, error) {
	if _, ok := n[info]; !ok {
		n[info] = uint16(len(n))
	}
	return n[info], nil
}

type said struct {
	addr uint64
	rule uint16
}

// libraries returns files to read: the system's, and those that INFERSCOPE_TEST_ELF
// names (patterns with a colon between), a PyTorch's for example.
func libraries(t testing.TB) []string {
	t.Helper()
	patterns := append(
		[]string{"/usr/lib/x86_64-linux-gnu/lib*.so*"},
		filepath.SplitList(os.Getenv("INFERSCOPE_TEST_ELF"))...)
	var out []string
	seen := map[uint64]bool{}
	for i, p := range patterns {
		names, err := filepath.Glob(p)
		must.NoError(t, err)
		for _, name := range names {
			info, err := os.Stat(name)
			// After an expression the library takes its numbers for those of a register: libgcrypt's AVX2 code.
			if strings.HasPrefix(filepath.Base(name), "libgcrypt.so") {
				continue
			}
			if err != nil || !info.Mode().IsRegular() || i == 0 && info.Size() > 16<<20 {
				continue
			}
			if inode := info.Sys().(*syscall.Stat_t).Ino; !seen[inode] {
				seen[inode] = true
				out = append(out, name)
			}
		}
	}
	return out
}

// The fast reader says the same of every address as the library's.
func TestTheSameAsTheLibrary(t *testing.T) {
	fast := 0
	for _, name := range libraries(t) {
		f, err := os.Open(name)
		must.NoError(t, err)
		if compare(t, f, name) {
			fast++
		}
		f.Close()
	}
	t.Logf("%d files read by the fast reader", fast)
	if fast < 5 {
		t.Skip("needs file: five libraries in /usr/lib/x86_64-linux-gnu that only have .eh_frame")
	}
}

// compare reports whether the fast reader could read the file.
func compare(t *testing.T, f *os.File, name string) bool {
	t.Helper()
	file, err := pfelf.NewFile(plain{f}, 0, false)
	if err != nil {
		return false
	}
	n := numbers{}
	mine := New(n)
	if err := mine.fast(f, file); err != nil {
		if !errors.Is(err, errOther) {
			t.Errorf("%s: %v", name, err)
		}
		return false
	}
	its := &library{infos: map[uint16]support.UnwindInfo{}}
	if err := its.load(f, name); err != nil {
		t.Logf("%s: only the fast reader reads it: %v", name, err)
		return true
	}
	infos := map[uint16]support.UnwindInfo{}
	for info, number := range n {
		infos[number] = info
	}
	i := 0
	mine.Each(func(addr uint64, rule uint16) {
		if i < len(its.said) {
			if w := its.said[i]; addr != w.addr || !sameRule(rule, infos, w.rule, its.infos) {
				t.Errorf("%s: rule %d at %#x is %x %+v, want at %#x %x %+v",
					name, i, addr, rule, infos[rule], w.addr, w.rule, its.infos[w.rule])
				i = len(its.said)
			}
		}
		i++
	})
	if first, count := mine.Pages(); first != its.first || count != its.pages {
		t.Errorf("%s: %d pages from %#x, want %d from %#x", name, count, first, its.pages, its.first)
	}
	if i != len(its.said) {
		t.Errorf("%s: %d rules, the library has %d", name, i, len(its.said))
	}
	return true
}

func sameRule(a uint16, as map[uint16]support.UnwindInfo, b uint16, bs map[uint16]support.UnwindInfo) bool {
	if a&support.DeltaCommandFlag != 0 || b&support.DeltaCommandFlag != 0 {
		return a == b
	}
	return as[a] == bs[b]
}

// library notes what the library's own manager would hand to the kernel.
type library struct {
	ebpfapi.EbpfHandler
	infos map[uint16]support.UnwindInfo
	said  []said
	first uint64
	pages int
}

func (l *library) load(f *os.File, name string) error {
	m, err := execinfomanager.NewExecutableInfoManager(elfunwindinfo.NewStackDeltaProvider(), l,
		interpreterconfig.NoInterpreters())
	if err != nil {
		return err
	}
	ref := pfelf.NewReferenceWithOpenFunc(name, pfelf.SystemOpener,
		func() (*pfelf.File, error) { return pfelf.NewFile(plain{f}, 0, false) })
	defer ref.Close()
	_, err = m.AddOrIncRef(1, ref)
	return err
}

func (l *library) UpdateUnwindInfo(index uint16, info support.UnwindInfo) error {
	l.infos[index] = info
	return nil
}

func (l *library) UpdateExeIDToStackDeltas(_ host.FileID, deltas []ebpfapi.StackDeltaEBPF) (uint16, error) {
	for _, d := range deltas {
		l.said = append(l.said, said{uint64(d.AddressLow), d.UnwindInfo})
	}
	return 0, nil
}

func (l *library) UpdateStackDeltaPages(_ host.FileID, perPage []uint16, _ uint16, first uint64) error {
	l.first, l.pages = first, len(perPage)
	i := 0
	for page, n := range perPage {
		for range n {
			l.said[i].addr |= first + uint64(page)<<support.StackDeltaPageBits
			i++
		}
	}
	return nil
}

func BenchmarkRead(b *testing.B) {
	for _, name := range libraries(b) {
		info, err := os.Stat(name)
		if err != nil || info.Size() < 4<<20 {
			continue
		}
		for _, way := range []string{"fast", "library"} {
			b.Run(filepath.Base(name)+"/"+way, func(b *testing.B) {
				f, err := os.Open(name)
				must.NoError(b, err)
				defer f.Close()
				b.ReportAllocs()
				rules := 0
				for b.Loop() {
					t := New(numbers{})
					if way == "fast" {
						err = t.Read(f, name, pfelf.SystemOpener)
					} else {
						err = t.slow(f, name, pfelf.SystemOpener)
					}
					if err != nil {
						b.Skip(err)
					}
					rules = t.rules.length
				}
				b.ReportMetric(float64(rules), "rules")
			})
		}
	}
}
