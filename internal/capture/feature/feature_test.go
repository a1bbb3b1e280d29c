package feature

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const (
	allCaps  = "000001ffffffffff"
	noCaps   = "0000000000000000"
	fiveCaps = "000001c000080004" // BPF, PERFMON, CHECKPOINT_RESTORE, SYS_PTRACE, DAC_READ_SEARCH
)

// machine is a file system as the kernel would show it.
type machine struct {
	caps, btf, lockdown, pidns string
	calls                      map[Name]error
}

func good() machine {
	return machine{
		caps:     allCaps,
		btf:      "\x9f\xeb\x01",
		lockdown: "none [integrity] confidentiality\n",
		pidns:    "pid:[4026531836]",
	}
}

func (m machine) detect(t *testing.T) Host {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	write("proc/self/status", "Name:\tx\nCapPrm:\t"+noCaps+"\nCapEff:\t"+m.caps+"\n")
	write("proc/sys/kernel/perf_event_paranoid", "3\n")
	if m.btf != "" {
		write(btfFile, m.btf)
	}
	if m.lockdown != "" {
		write("sys/kernel/security/lockdown", m.lockdown)
	}
	write("proc/self/ns/x", "")
	must.NoError(t, os.Symlink(m.pidns, filepath.Join(root, "proc/self/ns/pid")))
	p := Prober{Root: root, tries: []try{}}
	for _, name := range []Name{RingBuffer, TaskStorage, Tracepoint, PerfCookie, UprobeMulti, UprobeSession, SocketLength} {
		p.tries = append(p.tries, try{name, func() error { return m.calls[name] }})
	}
	return p.Detect()
}

func TestCheck(t *testing.T) {
	no := fmt.Errorf("not here: %w", ebpf.ErrNotSupported)
	tests := []struct {
		name   string
		change func(*machine)
		code   clierror.Code
		says   string // in the error or the hint
	}{
		{"all is well", func(*machine) {}, clierror.OK, ""},
		{"five capabilities are enough", func(m *machine) { m.caps = fiveCaps }, clierror.OK, ""},
		{
			"no capabilities",
			func(m *machine) { m.caps = noCaps },
			clierror.Permission,
			"CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE",
		},
		{
			"no CAP_SYS_PTRACE",
			func(m *machine) { m.caps = "000000c000000000" },
			clierror.Permission,
			"missing CAP_SYS_PTRACE, needed",
		},
		{"no BTF", func(m *machine) { m.btf = "" }, clierror.Unsupported, "CONFIG_DEBUG_INFO_BTF"},
		{"BTF that is none", func(m *machine) { m.btf = "\x7fELF" }, clierror.Unsupported, "CONFIG_DEBUG_INFO_BTF"},
		{
			"no ring buffers",
			func(m *machine) { m.calls = map[Name]error{RingBuffer: no} },
			clierror.Unsupported,
			"ring buffers",
		},
		{
			"bpf refused",
			func(m *machine) { m.calls = map[Name]error{RingBuffer: unix.EPERM} },
			clierror.Permission,
			"seccomp",
		},
		{
			"ring buffers: could not tell",
			func(m *machine) { m.calls = map[Name]error{RingBuffer: unix.EMFILE} },
			clierror.OK,
			"",
		},
		{
			"confidentiality",
			func(m *machine) { m.lockdown = "none integrity [confidentiality]" },
			clierror.Unsupported,
			"lockdown",
		},
		{"no lockdown file", func(m *machine) { m.lockdown = "" }, clierror.OK, ""},
		{"a container", func(m *machine) { m.pidns = "pid:[4026532201]" }, clierror.Unsupported, "hostPID"},
		{"no uprobe_multi", func(m *machine) { m.calls = map[Name]error{UprobeMulti: no} }, clierror.OK, ""},
		{
			"no uprobe_multi, not root",
			func(m *machine) { m.calls, m.caps = map[Name]error{UprobeMulti: no}, fiveCaps },
			clierror.Permission,
			"CAP_SYS_ADMIN",
		},
		{
			"no uprobes at all",
			func(m *machine) { m.calls = map[Name]error{UprobeMulti: no, PerfCookie: no} },
			clierror.Unsupported,
			"5.15",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := good()
			tt.change(&m)
			err := m.detect(t).Check()
			if clierror.CodeOf(err) != tt.code {
				t.Fatalf("code %d (%v), want %d", clierror.CodeOf(err), err, tt.code)
			}
			if err == nil {
				return
			}
			if text := err.Error() + "; " + clierror.HintOf(err); !strings.Contains(text, tt.says) ||
				clierror.HintOf(err) == "" {
				t.Errorf("%q does not say %q", text, tt.says)
			}
		})
	}
}

func TestAnswersAreKeptApart(t *testing.T) {
	m := good()
	m.btf = ""
	m.calls = map[Name]error{RingBuffer: unix.EPERM, Tracepoint: fmt.Errorf("x: %w", ebpf.ErrNotSupported)}
	h := m.detect(t)
	for name, want := range map[Name]answer{
		BTF: No, RingBuffer: Unknown, Tracepoint: No, TaskStorage: Yes, "telepathy": Unknown,
	} {
		if got := h.Of(name); got.Answer != want || (got.Err == nil) != (want == Yes) {
			t.Errorf("%s: %s (%v), want %s", name, got.Answer, got.Err, want)
		}
	}
	if h.Lockdown != "integrity" || h.Paranoid != 3 || h.InitialPIDNS != Yes {
		t.Errorf("%+v", h)
	}
}

func TestMissingCapabilities(t *testing.T) {
	var got []string
	for _, n := range (capabilities{Known: true}).Missing() {
		for _, c := range n.Needs {
			got = append(got, c.String())
		}
	}
	want := "CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_SYS_ADMIN CAP_DAC_READ_SEARCH CAP_CHECKPOINT_RESTORE"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("missing %s\nwant    %s", s, want)
	}
	if lacks := (capabilities{Known: true, set: 1 << SysAdmin}).Missing(); len(lacks) != 2 {
		t.Errorf("CAP_SYS_ADMIN stands for BPF, PERFMON and CHECKPOINT_RESTORE, but: %+v", lacks)
	}
}

// On a machine whose kernel has everything that the tests of package probe need,
// this must say so.
func TestThisMachine(t *testing.T) {
	h := Prober{}.Detect()
	for _, f := range h.Findings {
		t.Logf("%-40s %s %v", f.Name, f.Answer, f.Err)
	}
	if os.Geteuid() != 0 {
		if f := h.Of(RingBuffer); f.Answer == No {
			t.Errorf("without privileges nothing can be known of %s, yet: %v", f.Name, f.Err)
		}
		return
	}
	if f := h.Of(BTF); f.Answer == No {
		t.Skip(f.Err)
	}
	if f := h.Of(RingBuffer); f.Answer != Yes && !errors.Is(f.Err, unix.EPERM) {
		t.Errorf("%+v", f)
	}
	if multi, session := h.Of(UprobeMulti), h.Of(UprobeSession); session.Answer == Yes && multi.Answer != Yes {
		t.Errorf("sessions without uprobe_multi: %v", multi.Err)
	}
	if f := finding(SocketLength, haveTracepoint("inferscope_no_such_tracepoint")); f.Answer != No {
		t.Errorf("a tracepoint that no kernel has: %+v", f)
	}
}
