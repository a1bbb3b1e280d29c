// Package config finds out what the user set, and where: a flag goes over the
// environment, that over the file, that over the default. It reads nothing by
// itself: its layers do, so that every order is tested without a process.
package config

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Settings are the values in force.
type Settings struct {
	Enabled           bool
	LogLevel          string // debug, info, warn, error
	TraceSizeMB       int    // the recorder's memory budget, 10^6 bytes
	SyncErrorMarginUS int    // clock error in µs above which a report warns
	ReportFormat      string // markdown, html, json
	ReportPath        string //
	CUDAVersion       string // which CUDA to look for, e.g. 12.4; "": the one that is found
	CPUSamplingHz     int    // samples per second and thread; 0: none
	Allow             string // rules of discovery, as discover.ParseRules reads them
	Deny              string // likewise
	// Triggers of the flight recorder, as package fleet reads them.
	TriggerIteration string
	TriggerGPUBusy   string
	TriggerErrors    string
	TriggerMemory    bool
	TriggerExit      bool
	TriggerCooldown  string
	TriggerPerDay    int
	SingleGPU        bool // more than one visible GPU is an error
}

// Setting describes one of them.
type Setting struct {
	Key     string // in .inferscope.yaml; a flag spells it with dashes
	Env     string
	Default string
	Means   string // for people: what it does, and its values
	Daemon  bool   // inferscoped heeds it
	set     func(*Settings, string) error
}

// isPath reports whether the setting is a path of a file that is read or written.
func (s Setting) isPath() bool { return strings.HasSuffix(s.Key, "_path") }

// all returns every setting, in the order in which documentation lists them.
func all() []Setting {
	return []Setting{
		{
			"enabled", "INFERSCOPE_ENABLED", "true", "0: do nothing, with a message (scope: silently)", true,
			func(s *Settings, v string) error { return boolean(v, &s.Enabled) },
		},
		{
			"log_level", "INFERSCOPE_LOG_LEVEL", "info", "debug, info, warn or error", true,
			func(s *Settings, v string) error { return oneOf(v, &s.LogLevel, "debug", "info", "warn", "error") },
		},
		{
			"trace_size_mb", "INFERSCOPE_TRACE_SIZE_MB", "100", "memory budget of the recorder in MB, 1 to 65536", true,
			func(s *Settings, v string) error { return number(v, &s.TraceSizeMB, 1, 65536) },
		},
		{
			"sync_error_margin_us", "INFERSCOPE_SYNC_ERROR_MARGIN_US", "1000",
			"clock error in microseconds above which a report warns", false,
			func(s *Settings, v string) error { return number(v, &s.SyncErrorMarginUS, 1, 1_000_000_000) },
		},
		{
			"report_format", "INFERSCOPE_REPORT_FORMAT", "markdown", "markdown, html or json", false,
			func(s *Settings, v string) error { return oneOf(v, &s.ReportFormat, "markdown", "html", "json") },
		},
		{
			"report_path", "INFERSCOPE_REPORT_PATH", "./report.md", "where `run` writes its report", false,
			func(s *Settings, v string) error { return text(v, &s.ReportPath) },
		},
		{
			"cuda_version", "INFERSCOPE_CUDA_VERSION", "",
			"which CUDA to look for where several are installed, like 12 or 12.4; empty: the one that is found", true,
			func(s *Settings, v string) error { return cudaVersion(v, &s.CUDAVersion) },
		},
		{
			"cpu_sampling_frequency_hz", "INFERSCOPE_CPU_SAMPLING_FREQUENCY_HZ", "99",
			"CPU samples per second and thread, up to 2000; 0 takes none", true,
			func(s *Settings, v string) error { return number(v, &s.CPUSamplingHz, 0, 2000) },
		},
		{
			"single_gpu", "INFERSCOPE_SINGLE_GPU", "false", "true: more than one visible GPU is an error", true,
			func(s *Settings, v string) error { return boolean(v, &s.SingleGPU) },
		},
		{
			"allow", "INFERSCOPE_ALLOW", "", "with discovery, watch only processes that one of these rules fits: name=python*,user=alice; cmdline=*vllm serve*", true,
			func(s *Settings, v string) error { s.Allow = v; return nil },
		},
		{
			"deny", "INFERSCOPE_DENY", "", "with discovery, leave alone processes that one of these rules fits", true,
			func(s *Settings, v string) error { s.Deny = v; return nil },
		},
		{
			"trigger_iteration", "INFERSCOPE_TRIGGER_ITERATION", "", "with --record-dir: save the last minute where the median iteration takes longer than this for so long: 200ms for 30s", true,
			func(s *Settings, v string) error { s.TriggerIteration = v; return nil },
		},
		{
			"trigger_gpu_busy", "INFERSCOPE_TRIGGER_GPU_BUSY", "",
			"likewise where GPUs work for less of the observed time: 20% for 1m", true,
			func(s *Settings, v string) error { s.TriggerGPUBusy = v; return nil },
		},
		{
			"trigger_errors", "INFERSCOPE_TRIGGER_ERRORS", "", "likewise where more CUDA calls fail: 1% for 10s", true,
			func(s *Settings, v string) error { s.TriggerErrors = v; return nil },
		},
		{
			"trigger_memory", "INFERSCOPE_TRIGGER_MEMORY", "false",
			"likewise where an allocation of PyTorch or of the CUDA driver fails for want of memory; GPU memory that the " +
				"driver refuses to a process with PyTorch does not count, as PyTorch asks again", true,
			func(s *Settings, v string) error { return boolean(v, &s.TriggerMemory) },
		},
		{
			"trigger_exit", "INFERSCOPE_TRIGGER_EXIT", "true",
			"likewise where a target crashes, is killed, or ends with an error", true,
			func(s *Settings, v string) error { return boolean(v, &s.TriggerExit) },
		},
		{
			"trigger_cooldown", "INFERSCOPE_TRIGGER_COOLDOWN", "5m", "no second time within this, of one target", true,
			func(s *Settings, v string) error { s.TriggerCooldown = v; return nil },
		},
		{
			"trigger_per_day", "INFERSCOPE_TRIGGER_PER_DAY", "24",
			"no more often than this in a day, of all targets together", true,
			func(s *Settings, v string) error { return number(v, &s.TriggerPerDay, 0, 10000) },
		},
	}
}

// layer is one place where a setting can be told.
type layer interface {
	// Lookup returns the value of a setting as it was written, and where that is, for messages.
	Lookup(s Setting) (value, where string, ok bool)
}

// Origin is the value of a setting, and where it comes from.
type Origin struct {
	Setting
	Value string // as it was written
	Where string // e.g. INFERSCOPE_LOG_LEVEL; "" for the default
}

// Load takes each wanted setting from the first layer that has it, else its
// default. A value that cannot be used gives clierror.Usage and names its place.
func Load(want func(Setting) bool, layers ...layer) (Settings, error) {
	out, _, err := Explain(want, layers...)
	return out, err
}

// Explain is Load that also says where each wanted setting comes from, in the order of all.
func Explain(want func(Setting) bool, layers ...layer) (Settings, []Origin, error) {
	var out Settings
	var origins []Origin
	for _, s := range all() {
		if err := s.set(&out, s.Default); err != nil {
			return out, nil, fmt.Errorf("default of %s: %w", s.Key, err)
		}
		if !want(s) {
			continue
		}
		o := Origin{Setting: s, Value: s.Default}
		for _, l := range layers {
			v, where, ok := l.Lookup(s)
			if !ok {
				continue
			}
			if err := s.set(&out, v); err != nil {
				return out, nil, clierror.New(clierror.Usage, s.Key+": "+s.Means, fmt.Errorf("%s: %w", where, err))
			}
			o.Value, o.Where = v, where
			break
		}
		origins = append(origins, o)
	}
	return out, origins, nil
}

// ForDaemon wants the settings that inferscoped heeds.
func ForDaemon(s Setting) bool { return s.Daemon }

func boolean(v string, to *bool) error {
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "1", "true", "yes", "on":
		*to = true
	case "0", "false", "no", "off":
		*to = false
	default:
		return fmt.Errorf("%q is neither true nor false", v)
	}
	return nil
}

func number(v string, to *int, low, high int) error {
	n, err := strconv.Atoi(strings.TrimSpace(v))
	if err != nil {
		return fmt.Errorf("%q is not a whole number", v)
	}
	if n < low || n > high {
		return fmt.Errorf("%d is not between %d and %d", n, low, high)
	}
	*to = n
	return nil
}

func oneOf(v string, to *string, allowed ...string) error {
	v = strings.ToLower(strings.TrimSpace(v))
	if !slices.Contains(allowed, v) {
		return fmt.Errorf("%q is none of %s", v, strings.Join(allowed, ", "))
	}
	*to = v
	return nil
}

func text(v string, to *string) error {
	if v == "" || strings.ContainsRune(v, 0) {
		return fmt.Errorf("%q is not a path", v)
	}
	*to = v
	return nil
}

// cudaVersion takes "", "12" or "12.4"; a third number, as toolkits have it, is dropped.
func cudaVersion(v string, to *string) error {
	v = strings.TrimSpace(v)
	if v == "" {
		*to = ""
		return nil
	}
	parts := strings.Split(v, ".")
	if len(parts) > 3 {
		return fmt.Errorf("%q is not a version like 12.4", v)
	}
	for _, p := range parts {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || strconv.FormatUint(n, 10) != p {
			return fmt.Errorf("%q is not a version like 12.4", v)
		}
	}
	*to = strings.Join(parts[:min(2, len(parts))], ".")
	return nil
}

// DevicesDir is where the NVIDIA driver lists its GPUs, one folder each.
const DevicesDir = "/proc/driver/nvidia/gpus"

// VisibleGPUs counts the GPUs of a DevicesDir that a program with this environment sees: CUDA C++ Programming Guide,
// "CUDA Environment Variables", and MIG User Guide, "CUDA Device Enumeration". 0 where there are none, or where that is
// not known.
func (e Environment) VisibleGPUs(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	list, set := e.Get("CUDA_VISIBLE_DEVICES")
	if !set {
		return len(entries)
	}
	n := 0
	for device := range strings.SplitSeq(list, ",") {
		if device = strings.TrimSpace(device); device == "" ||
			strings.HasPrefix(device, "-") { // nothing from there on is visible
			break
		}
		n++
		if strings.HasPrefix(device, "MIG-") { // a program has one part of one GPU, the first that it may see
			break
		}
	}
	return min(n, len(entries))
}
