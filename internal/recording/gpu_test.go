package recording_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestMetaCarriesTheGPU holds that what agents said comes back out of JSON, and that a
// recording without it says nothing of it.
func TestMetaCarriesTheGPU(t *testing.T) {
	meta := recordtest.New().Recording().Meta
	plain, err := json.Marshal(meta)
	must.NoError(t, err)
	if bytes.Contains(plain, []byte(`"gpu"`)) {
		t.Error("a recording without GPU speaks of it")
	}
	meta.GPU = &recording.GPU{
		Mode: "windows",
		Agents: []recording.Agent{
			{
				PID:     1,
				State:   "running",
				CUPTI:   "/x/libcupti.so.13",
				Version: 130001,
				Stopped: 5,
				Joined:  6,
				Slower:  "s",
				Dropped: 7,
			},
		},
		Windows: []recording.GPUWindow{
			{PID: 1, From: 2, To: 3, Activity: true, Calls: true, Dropped: 4, End: "finalized"},
		},
		Devices: []recording.Device{
			{PID: 1, ID: 0, Name: "NVIDIA H200", UUID: "GPU-1", SMs: 132, Memory: 1, PeakRate: 2, Major: 9},
		},
		Streams: []recording.Stream{{PID: 1, ID: 7, Context: 1, Priority: -1, Kind: "default"}},
		Kernels: []recording.Kernel{{Name: strings.Repeat("k", 3000), Registers: 255, StaticShared: 1, Local: 2}},
		Ranges:  []string{"prefill"},
	}
	raw, err := json.Marshal(meta)
	must.NoError(t, err)
	var got recording.Meta
	must.NoError(t, json.Unmarshal(raw, &got))
	if diff := cmp.Diff(meta, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
