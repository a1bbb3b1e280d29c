package gpu

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// TestCBIDs compares the table with the headers of three versions of CUPTI: an id that a version
// knows must be that function there.
func TestCBIDs(t *testing.T) {
	row := regexp.MustCompile(`CUPTI_DRIVER_TRACE_CBID_(\w+)\s*=\s*(\d+)`)
	for part, atLeast := range map[nvlibs.Part]int{nvlibs.CUPTI11: 80, nvlibs.CUPTI12: 80, nvlibs.CUPTI13: 90} {
		t.Run(string(part), func(t *testing.T) {
			text, err := os.ReadFile(nvlibs.Header(t, part, "cupti_driver_cbid.h"))
			if err != nil {
				t.Fatal(err)
			}
			table, same := driverCalls(), 0
			for _, m := range row.FindAllSubmatch(text, -1) {
				id, err := strconv.ParseUint(string(m[2]), 0, 32)
				if err != nil || id >= maxCBID {
					continue // the end of the enum
				}
				if want, ok := table[uint16(id)]; ok && want != string(m[1]) {
					t.Errorf("id %d is %s, the table says %s", id, m[1], want)
				} else if ok {
					same++
				}
			}
			if same < atLeast {
				t.Errorf("only %d of %d ids were found", same, len(table))
			}
		})
	}
}
