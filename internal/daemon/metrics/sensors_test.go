package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
)

// TestSensorsHaveTheirMetrics in base units; what a GPU does not tell has no series.
func TestSensorsHaveTheirMetrics(t *testing.T) {
	r := registry(t, filled(), func() api.Status {
		s := status()
		s.Sensors = []recording.Sensor{
			{
				GPU: 0, UUID: "GPU-a", Power: 540_500, Temperature: 61, SMClock: 1755, Reasons: 0x41, Utilization: 98,
				MemoryUsed: 5 << 30, MemoryTotal: 80 << 30, Uncorrected: 2,
				Links: recording.PCIeLink, PCIeRx: 12e9, NVLinkRx: 7,
			},
			{GPU: 2, UUID: "GPU-c", MIG: true, Power: 300_000},
			{GPU: 1, UUID: "GPU-b", Links: recording.NVLink, NVLinkRx: 3e9, NVLinkTx: 4e9},
		}
		s.Xids = []recording.XidCount{
			{GPU: 0, Bus: "0000:65:00", Code: 31, Count: 3}, {GPU: -1, Bus: "0000:66:00", Code: 79, Count: 1},
		}
		return s
	})
	want := `
# HELP inferscope_gpu_clock_limited 1 while clocks are low for this reason, else 0.
# TYPE inferscope_gpu_clock_limited gauge
inferscope_gpu_clock_limited{gpu="0",reason="hardware slowdown",uuid="GPU-a"} 0
inferscope_gpu_clock_limited{gpu="0",reason="power brake",uuid="GPU-a"} 0
inferscope_gpu_clock_limited{gpu="0",reason="power limit",uuid="GPU-a"} 0
inferscope_gpu_clock_limited{gpu="0",reason="too hot (hardware)",uuid="GPU-a"} 1
inferscope_gpu_clock_limited{gpu="0",reason="too hot (software)",uuid="GPU-a"} 0
inferscope_gpu_clock_limited{gpu="1",reason="hardware slowdown",uuid="GPU-b"} 0
inferscope_gpu_clock_limited{gpu="1",reason="power brake",uuid="GPU-b"} 0
inferscope_gpu_clock_limited{gpu="1",reason="power limit",uuid="GPU-b"} 0
inferscope_gpu_clock_limited{gpu="1",reason="too hot (hardware)",uuid="GPU-b"} 0
inferscope_gpu_clock_limited{gpu="1",reason="too hot (software)",uuid="GPU-b"} 0
inferscope_gpu_clock_limited{gpu="2",reason="hardware slowdown",uuid="GPU-c"} 0
inferscope_gpu_clock_limited{gpu="2",reason="power brake",uuid="GPU-c"} 0
inferscope_gpu_clock_limited{gpu="2",reason="power limit",uuid="GPU-c"} 0
inferscope_gpu_clock_limited{gpu="2",reason="too hot (hardware)",uuid="GPU-c"} 0
inferscope_gpu_clock_limited{gpu="2",reason="too hot (software)",uuid="GPU-c"} 0
# HELP inferscope_gpu_ecc_uncorrected_errors_total Memory errors that could not be corrected, since the driver was loaded.
# TYPE inferscope_gpu_ecc_uncorrected_errors_total counter
inferscope_gpu_ecc_uncorrected_errors_total{gpu="0",uuid="GPU-a"} 2
inferscope_gpu_ecc_uncorrected_errors_total{gpu="1",uuid="GPU-b"} 0
inferscope_gpu_ecc_uncorrected_errors_total{gpu="2",uuid="GPU-c"} 0
# HELP inferscope_gpu_nvlink_bytes_per_second Bytes a second over all NVLinks of the GPU, average of ten seconds.
# TYPE inferscope_gpu_nvlink_bytes_per_second gauge
inferscope_gpu_nvlink_bytes_per_second{direction="received",gpu="1",uuid="GPU-b"} 3e+09
inferscope_gpu_nvlink_bytes_per_second{direction="sent",gpu="1",uuid="GPU-b"} 4e+09
# HELP inferscope_gpu_pcie_bytes_per_second Bytes a second over PCIe: NVIDIA's driver counts for 20 ms of each second, AMD's all of it (an upper bound).
# TYPE inferscope_gpu_pcie_bytes_per_second gauge
inferscope_gpu_pcie_bytes_per_second{direction="received",gpu="0",uuid="GPU-a"} 1.2e+10
inferscope_gpu_pcie_bytes_per_second{direction="sent",gpu="0",uuid="GPU-a"} 0
# HELP inferscope_gpu_power_watts Power that the GPU draws.
# TYPE inferscope_gpu_power_watts gauge
inferscope_gpu_power_watts{gpu="0",uuid="GPU-a"} 540.5
inferscope_gpu_power_watts{gpu="2",uuid="GPU-c"} 300
# HELP inferscope_gpu_sm_clock_hertz Clock of the GPU's multiprocessors.
# TYPE inferscope_gpu_sm_clock_hertz gauge
inferscope_gpu_sm_clock_hertz{gpu="0",uuid="GPU-a"} 1.755e+09
# HELP inferscope_gpu_utilization_ratio Share of the time in which a kernel ran, by the driver's sampling.
# TYPE inferscope_gpu_utilization_ratio gauge
inferscope_gpu_utilization_ratio{gpu="0",uuid="GPU-a"} 0.98
inferscope_gpu_utilization_ratio{gpu="1",uuid="GPU-b"} 0
# HELP inferscope_gpu_xid_errors_total Errors of GPUs (Xid) in the kernel's log, since a program that uses a GPU was first watched.
# TYPE inferscope_gpu_xid_errors_total counter
inferscope_gpu_xid_errors_total{code="31",gpu="0",pci="0000:65:00"} 3
inferscope_gpu_xid_errors_total{code="79",gpu="unknown",pci="0000:66:00"} 1
`
	err := testutil.GatherAndCompare(r, strings.NewReader(want),
		"inferscope_gpu_clock_limited", "inferscope_gpu_ecc_uncorrected_errors_total", "inferscope_gpu_power_watts",
		"inferscope_gpu_nvlink_bytes_per_second", "inferscope_gpu_pcie_bytes_per_second",
		"inferscope_gpu_sm_clock_hertz", "inferscope_gpu_utilization_ratio", "inferscope_gpu_xid_errors_total")
	if err != nil {
		t.Error(err)
	}
}
