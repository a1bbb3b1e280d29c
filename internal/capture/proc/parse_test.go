package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const statTail = " S 17 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 100 18446744073709551615 1 1\n"

func TestParseStat(t *testing.T) {
	for _, comm := range []string{"python3", "a b", ") R 1 (", "x)", "(", "", "new\nline", "a) Z 1 1 1 1 1 64 (b"} {
		got, err := parseStat([]byte("123 (" + comm + ")" + statTail))
		want := stat{comm, 'S', 17, 4194560, 98765}
		if err != nil || got != want {
			t.Errorf("%q: %+v %v, want %+v", comm, got, err, want)
		}
	}
	if got, _ := parseStat([]byte("1 (\xff\xfe)" + statTail)); got.comm != "?" {
		t.Errorf("comm that is no UTF-8: %q", got.comm)
	}
	for _, bad := range []string{
		"", "1", "1 (", "1 )x(", "1 (a) S 1 2", "1 (a)" + strings.Replace(statTail, "17", "x", 1),
		"1 (a)" + strings.Replace(statTail, "98765", "-1", 1), "1 (a)" + strings.Replace(statTail, "S", "SS", 1),
	} {
		if s, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: %+v without an error", bad, s)
		}
	}
}

func TestParseStatus(t *testing.T) {
	text := "Name:\tUid:\\n7\nUmask:\t0022\nTgid:\t4321\nPPid:\t1\nUid:\t1000\t0\t0\t0\nGid:\t5\n" +
		"Groups:\t" + strings.Repeat("4294967294 ", 20000) + "NSpid:\t6 \nNStgid:\t4321\t7\nNSpid:\t4321\t77\t1\n" +
		"VmExe:\t    12 kB\nVmLib:\t  3000 kB\nNoColon\nEmpty:\n"
	want := status{tgid: 4321, uid: 1000, mixed: true, nspid: 1, exec: 3012}
	if got := parseStatus([]byte(text)); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// collect returns what scanMaps finds, as seen by a process whose root is root.
func collect(r io.Reader, root string) ([]Mapping, error) {
	var found []Mapping
	err := scanMaps(r, func(line mapsLine) error {
		found = append(found, line.mapping(root))
		return nil
	})
	return found, err
}

func TestScanMaps(t *testing.T) {
	long := "/" + strings.Repeat("d/", 10000) + "liblong.so"
	text := strings.Join([]string{
		"55d0c0000000-55d0c0001000 r--p 00000000 fe:00 11                         /bin/x",
		"55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 11                         /bin/x",
		"7f0000000000-7f0000001000 rwxp 00000000 00:00 0 ",
		"7f0000001000-7f0000002000 r-xp 00000000 00:00 0                          [vdso]",
		"7f0000002000-7f0000003000 r-xs 00000000 00:05 99                         /memfd:jit (deleted)",
		"7f0000003000-7f0000004000 r-xp 00abc000 103:1f 18446744073709551615      /a b/libc uda.so.1 (deleted)",
		"7f0000004000-7f0000005000 r-xp 00000000 08:01 12                         " + long,
		"7f0000005000-7f0000006000 r-xp 00000000 08:01 13                         /" + strings.Repeat("y", maxMapsLine),
		"7f0000006000-7f0000007000 r-xp 00000000 08:01 14                         /new\\012line",
		"7f0000007000-7f0000008000 r-xp 00000000 00:10 15                         socket:[15]",
		"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]",
	}, "\n") + "\n"
	want := []Mapping{
		{0x55d0c0001000, 0x55d0c0002000, 0x1000, 0xfe << 32, 11, "/bin/x", false},
		{0x7f0000002000, 0x7f0000003000, 0, 5, 99, "/memfd:jit", true},
		{0x7f0000003000, 0x7f0000004000, 0xabc000, 0x103<<32 | 0x1f, 1<<64 - 1, "/a b/libc uda.so.1", true},
		{0x7f0000004000, 0x7f0000005000, 0, 8<<32 | 1, 12, long, false},
		{0x7f0000006000, 0x7f0000007000, 0, 8<<32 | 1, 14, "/new\nline", false},
	}
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text), "halves": iotest.HalfReader(strings.NewReader(text)),
		"byte by byte": iotest.OneByteReader(strings.NewReader(text)),
	} {
		got, err := collect(r, "/")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func TestScanMapsChroot(t *testing.T) {
	text := "1000-2000 r-xp 0 8:1 5 /jail/lib/x.so\n2000-3000 r-xp 0 8:1 6 /jailer/y.so\n"
	got, err := collect(strings.NewReader(text), "/jail")
	if err != nil || len(got) != 2 || got[0].Path != "/lib/x.so" || got[1].Path != "/jailer/y.so" {
		t.Errorf("%+v %v", got, err)
	}
}

func TestScanMapsRefuses(t *testing.T) {
	for _, bad := range []string{
		"x", "1000-2000", "1000 r-xp 0 0:0 0", "-1 r-xp 0 0:0 1 /x", "g-1 r-xp 0 0:0 1 /x",
		"1-2 r-xp  0:0 1 /x", "1-2 r-xp 0 00 1 /x", "1-2 r-xp 0 0:0 /x", "11112222333344445-2 r-xp 0 0:0 1 /x",
		"1-2 r-xp 0 0:0 123456789012345678901 /x", "1-2 r-xp",
	} {
		if m, err := collect(strings.NewReader(bad+"\n"), "/"); !errors.Is(err, errMapsLine) {
			t.Errorf("%q: %+v %v, want %v", bad, m, err, errMapsLine)
		}
	}
	line := "1-2 ---p 0 0:0 1 /" + strings.Repeat("x", 1000) + "\n"
	endless := io.LimitReader(&repeated{text: line}, maxMapsBytes+maxMapsLine)
	if _, err := collect(endless, "/"); !errors.Is(err, errMapsTooLong) {
		t.Errorf("endless mappings: %v, want %v", err, errMapsTooLong)
	}
}

// repeated is a text without an end.
type repeated struct {
	text string
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.text[r.at]
		r.at = (r.at + 1) % len(r.text)
	}
	return len(p), nil
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) b" + statTail))
	f.Add([]byte("1 ()))((\n" + statTail))
	fuzzing.Run(f, func(t *testing.T, line []byte) {
		s, err := parseStat(line)
		if err != nil {
			return
		}
		// What was understood survives another comm around it.
		again, err := parseStat(fmt.Appendf(nil, "1 (x) y) %c %d 0 0 0 0 %d 0 0 0 0 0 0 0 0 0 0 0 0 %d",
			s.state, s.parent, s.flags, s.start))
		if s.state >= 0x80 || s.state <= ' ' {
			return
		}
		if again.comm = s.comm; err != nil || again != s {
			t.Errorf("%q: %+v, again %+v %v", line, s, again, err)
		}
	})
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("Uid:\t1\t2\nNSpid:\t5\t1\nVmLib:\t8 kB\n"))
	fuzzing.Run(f, func(t *testing.T, text []byte) {
		s := parseStatus(text)
		if more := parseStatus(append(bytes.Clone(text), "\nNoColon\nOther:\t1\n"...)); more != s {
			t.Errorf("%q: %+v, with lines of no interest %+v", text, s, more)
		}
	})
}

func FuzzScanMaps(f *testing.F) {
	own, err := os.ReadFile("/proc/self/maps")
	if err == nil {
		f.Add(own[:min(len(own), 4096)])
	}
	f.Add([]byte("1-2 r-xp 0 0:0 1 /x\\012 (deleted)\n"))
	fuzzing.Run(f, func(t *testing.T, text []byte) {
		whole, err := collect(bytes.NewReader(text), "/")
		slow, slowErr := collect(iotest.OneByteReader(bytes.NewReader(text)), "/")
		if !errors.Is(slowErr, err) || !cmp.Equal(whole, slow) {
			t.Errorf("%q: %v %v at once, %v %v byte by byte", text, whole, err, slow, slowErr)
		}
		for _, m := range whole {
			if m.Inode == 0 || !strings.HasPrefix(m.Path+"/", "/") {
				t.Errorf("%q: %+v", text, m)
			}
		}
	})
}

func FuzzReadRecord(f *testing.F) {
	f.Add(make([]byte, 96))
	f.Add([]byte("\x0a\x00\x00\x00\x02\x00\x60\x00" + strings.Repeat("/lib.so\x00", 11)))
	fuzzing.Run(f, func(t *testing.T, record []byte) {
		if len(record) >= 8 { // mapRing.record gives no less
			readRecord(record, func(uint32, uint64, []byte) {})
		}
	})
}

// A PyTorch process has about 2,000 lines, of which 300 are executable files.
func BenchmarkScanMaps(b *testing.B) {
	var text bytes.Buffer
	for i := range 2000 {
		perms := "r--p"
		if i%7 == 0 {
			perms = "r-xp"
		}
		fmt.Fprintf(
			&text,

			"7f%010x-7f%010x %s %08x fe:00 %d                 "+
				"/usr/local/lib/python3.11/site-packages/torch/lib/libtorch_%d.so\n",
			i*4096,
			i*4096+4096,
			perms,
			i*4096,
			400000+i,
			i,
		)
	}
	r := bytes.NewReader(nil)
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(text.Bytes())
		must.NoError(b, scanMaps(r, func(line mapsLine) error { _ = line.base(); return nil }))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2000, "ns/line")
}

// TestQuota: whoever fills the table as far as it lets them leaves room for the next one, by rows and by bytes.
func TestQuota(t *testing.T) {
	for what, q := range map[string]Quota{"rows": NewQuota(1024, 1<<30), "bytes": NewQuota(1<<30, 10_240)} {
		var got []int
		for uid := range uint32(5) {
			n := 0
			for q.Take(Payer{UID: uid}, 10) {
				n++
			}
			got = append(got, n)
		}
		for i, least := range []int{512, 256, 128, 64, 32} {
			if got[i] < least-1 || got[i] > least+1 {
				t.Errorf("%s: user %d got %d of 1024, want %d", what, i, got[i], least)
			}
		}
		if q.Take(Payer{UID: 0}, 10) {
			t.Errorf("%s: the first one still gets more", what)
		}
	}
}
