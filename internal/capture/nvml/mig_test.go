package nvml

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/sleeper"
)

// listed and detailed are what nvidia-smi -L and -q -x say of a machine with two GPUs, of which the second is divided.
const (
	listed = `GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0a00)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-0a1b)
  MIG 1g.5gb      Device  0: (UUID: MIG-11c2)
  MIG 3g.20gb     Device  1: (UUID: MIG-33c4)
`
	detailed = `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><attached_gpus>2</attached_gpus>
<gpu id="00000000:64:00.0"><mig_devices>None</mig_devices><uuid>GPU-0a00</uuid></gpu>
<gpu id="00000000:65:00.0"><mig_devices>
<mig_device><index>0</index><gpu_instance_id>7</gpu_instance_id><compute_instance_id>0</compute_instance_id>
<fb_memory_usage><total>4864 MiB</total><reserved>0 MiB</reserved><used>298 MiB</used></fb_memory_usage></mig_device>
<mig_device><index>1</index><gpu_instance_id>2</gpu_instance_id>
<fb_memory_usage><total>N/A</total><used>N/A</used></fb_memory_usage></mig_device>
</mig_devices><uuid>GPU-0a1b</uuid></gpu></nvidia_smi_log>
`
)

func wantParts(at uint64) []recording.GPUPart {
	return []recording.GPUPart{
		{
			TS: at, GPU: 1, GPUUUID: "GPU-0a1b", Index: 0, Instance: 7, UUID: "MIG-11c2", Profile: "1g.5gb",
			MemoryUsed: 298 << 20, MemoryTotal: 4864 << 20,
		},
		{TS: at, GPU: 1, GPUUUID: "GPU-0a1b", Index: 1, Instance: 2, UUID: "MIG-33c4", Profile: "3g.20gb"},
	}
}

func TestParseParts(t *testing.T) {
	got, err := parseParts(listed, detailed, 5)
	must.NoError(t, err)
	if diff := cmp.Diff(wantParts(5), got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if _, err := parseParts(listed, "NVIDIA-SMI has failed", 5); err == nil {
		t.Error("what is not XML is taken")
	}
}

func FuzzParts(f *testing.F) {
	f.Add(listed, detailed)
	f.Fuzz(func(t *testing.T, names, details string) {
		list, err := parseParts(names, details, 5)
		if err == nil && len(list) > maxParts {
			t.Errorf("%d parts", len(list))
		}
	})
}

// TestParts: a divided GPU has no utilization, and its parts are asked for; nobody asks where no GPU is divided.
func TestParts(t *testing.T) {
	divided := strings.Replace(strings.Replace(line, "97, 42", "[N/A], [N/A]", 1), "Disabled", "Enabled", 1)
	script := func(line string) string {
		return "case \"$1\" in -L) cat <<END\n" + listed + "END\nexit;; -q) cat <<END\n" + detailed +
			"END\nexit;; dmon|nvlink) exit 3;; *apps*) sleep 0.5; exit;; esac\n" +
			"while :; do echo '" + line + "'; sleep 0.02; done\n"
	}
	s := New(Options{Program: fake(t, script(divided))})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "parts", func() bool { return len(s.Parts()) > 0 })
	got := s.Parts()
	if diff := cmp.Diff(wantParts(got[0].TS), got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if latest := s.Latest(); len(latest) != 1 || !latest[0].MIG || latest[0].Power != 123_450 {
		t.Errorf("%+v", latest)
	}
	whole := New(Options{Program: fake(t, script(line))})
	defer whole.Close()
	must.NoError(t, whole.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "samples", func() bool { return len(whole.Latest()) > 0 })
	whole.mu.Lock()
	whole.parts, whole.partsErr = wantParts(1), errors.New("gone") // of before the GPU was made whole
	whole.mu.Unlock()
	whole.askParts(make(chan struct{}))
	if detail := whole.State().Detail; strings.Contains(detail, "divided") {
		t.Errorf("the state says %q", detail)
	}
	if got := whole.Parts(); len(got) != 0 {
		t.Errorf("parts %+v of GPUs that are whole", got)
	}
}
