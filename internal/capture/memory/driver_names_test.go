package memory

import (
	"os"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// TestDriverNames: NVIDIA's drivers export each function that is looked for, at an address of its own unless it is an
// older form of another, and all of them can be probed.
func TestDriverNames(t *testing.T) {
	for _, part := range nvlibs.Drivers() {
		t.Run(string(part), func(t *testing.T) {
			file, err := os.Open(nvlibs.Library(t, part))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { file.Close() })
			info, err := file.Stat()
			if err != nil {
				t.Fatal(err)
			}
			image, err := elffile.Open(file, info.Size())
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]bool{}
			functions, err := image.Named(func(name string) bool { _, ok := driverFunctionOf(name); return ok })
			if err != nil {
				t.Fatal(err)
			}
			for _, fn := range functions {
				found[strings.TrimSuffix(fn.Name, "_ptsz")] = true
			}
			newer := map[string]bool{"cuCtxCreate_v4": true} // since 12.5
			for name := range driverFunctions {
				if !found[name] && !newer[name] {
					t.Errorf("%s is not exported", name)
				}
			}
			sites, err := driverSites(image, uprobe.Multi)
			if err != nil || len(sites.skipped) > 0 {
				t.Fatalf("%v, %v", sites, err)
			}
			if n := len(sites.calls) + len(sites.frees) + len(sites.switches); n < len(found) {
				t.Errorf("%d probe points of %d functions", n, len(found))
			}
		})
	}
}
