package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferscope/inferscope/internal/recording"
)

// sensorDescriptions are the metrics of GPUs themselves: of the whole machine, whoever uses them.
type sensorDescriptions struct {
	power, temperature, smClock, memoryClock *prometheus.Desc
	utilization, memoryUsed, memoryTotal     *prometheus.Desc
	clockLimited, ecc, xids, pcie, nvlink    *prometheus.Desc
}

func describeSensors() sensorDescriptions {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("inferscope_"+name, help, append([]string{"gpu", "uuid"}, labels...), nil)
	}
	return sensorDescriptions{
		power:        d("gpu_power_watts", "Power that the GPU draws."),
		temperature:  d("gpu_temperature_celsius", "Temperature of the GPU."),
		smClock:      d("gpu_sm_clock_hertz", "Clock of the GPU's multiprocessors."),
		memoryClock:  d("gpu_memory_clock_hertz", "Clock of the GPU's memory."),
		utilization:  d("gpu_utilization_ratio", "Share of the time in which a kernel ran, by the driver's sampling."),
		memoryUsed:   d("gpu_memory_used_bytes", "Memory of the GPU that is in use, by all processes."),
		memoryTotal:  d("gpu_memory_total_bytes", "Memory of the GPU."),
		clockLimited: d("gpu_clock_limited", "1 while clocks are low for this reason, else 0.", "reason"),
		ecc: d("gpu_ecc_uncorrected_errors_total",
			"Memory errors that could not be corrected, since the driver was loaded."),
		pcie: d("gpu_pcie_bytes_per_second",
			"Bytes a second over PCIe: NVIDIA's driver counts for 20 ms of each second, AMD's all of it "+
				"(an upper bound).",
			"direction"),
		nvlink: d("gpu_nvlink_bytes_per_second",
			"Bytes a second over all NVLinks of the GPU, average of ten seconds.", "direction"),
		xids: prometheus.NewDesc("inferscope_gpu_xid_errors_total",
			"Errors of GPUs (Xid) in the kernel's log, since a program that uses a GPU was first watched.",
			[]string{"gpu", "pci", "code"}, nil),
	}
}

func (d *sensorDescriptions) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		d.power, d.temperature, d.smClock, d.memoryClock, d.utilization, d.memoryUsed, d.memoryTotal, d.clockLimited,
		d.ecc, d.xids, d.pcie, d.nvlink,
	} {
		ch <- desc
	}
}

// collect sends the last sample of each GPU. What a GPU does not tell is 0 in samples, and is left out where it cannot
// be 0.
func (d *sensorDescriptions) collect(
	ch chan<- prometheus.Metric,
	samples []recording.Sensor,
	xids []recording.XidCount,
) {
	for i := range samples {
		s := &samples[i]
		gpu, uuid := strconv.Itoa(s.GPU), clean(s.UUID)
		gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
			labels = append([]string{gpu, uuid}, labels...)
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
		}
		known := func(desc *prometheus.Desc, v float64) {
			if v != 0 {
				gauge(desc, v)
			}
		}
		known(d.power, float64(s.Power)/1e3)
		known(d.temperature, float64(s.Temperature))
		known(d.smClock, float64(s.SMClock)*1e6)
		known(d.memoryClock, float64(s.MemoryClock)*1e6)
		known(d.memoryTotal, float64(s.MemoryTotal))
		if !s.MIG {
			gauge(d.utilization, float64(s.Utilization)/100)
		}
		gauge(d.memoryUsed, float64(s.MemoryUsed))
		for _, r := range recording.ClockReasons() {
			limited := 0.0
			if s.Reasons&r.Bit != 0 {
				limited = 1
			}
			gauge(d.clockLimited, limited, r.Name)
		}
		counter(ch, d.ecc, float64(s.Uncorrected), gpu, uuid)
		if s.Links&recording.PCIeLink != 0 {
			gauge(d.pcie, float64(s.PCIeRx), "received")
			gauge(d.pcie, float64(s.PCIeTx), "sent")
		}
		if s.Links&recording.NVLink != 0 {
			gauge(d.nvlink, float64(s.NVLinkRx), "received")
			gauge(d.nvlink, float64(s.NVLinkTx), "sent")
		}
	}
	for _, x := range xids {
		gpu := "unknown"
		if x.GPU >= 0 {
			gpu = strconv.Itoa(x.GPU)
		}
		counter(ch, d.xids, float64(x.Count), gpu, clean(x.Bus), strconv.Itoa(x.Code))
	}
}
