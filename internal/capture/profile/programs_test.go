package profile

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// What the programs write their records from is no longer than a record that can be read out of
// any ring, wherever in it that begins.
func TestLongestRecord(t *testing.T) {
	for name, one := range map[string]struct {
		load func() (*ebpf.CollectionSpec, error)
		from string // the structure of which a record is the first part
	}{
		"our own":        {bpf.LoadSample, "sample_scratch"},
		"the unwinder's": {support.LoadCollectionSpec, "Trace"},
	} {
		spec, err := one.load()
		must.NoError(t, err)
		var record *btf.Struct
		if err := spec.Types.TypeByName(one.from, &record); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if record.Size == 0 || record.Size > ring.MaxRecord {
			t.Errorf("%s records have up to %d bytes, and %d can be read", name, record.Size, ring.MaxRecord)
		}
	}
}
