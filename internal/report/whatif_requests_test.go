package report_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/report/document"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestWhatIfOfRequests: when the first token would come is said also where no GPU work can be replayed.
func TestWhatIfOfRequests(t *testing.T) {
	a := &whatif.Answer{
		FirstToken: []whatif.FirstToken{{Cause: "queueing", Was50: 300e6, Was99: 900e6, P50: 40e6, P99: 70e6}},
	}
	var out bytes.Buffer
	must.NoError(t, document.Text(&out, report.WhatIfDocument(a, 20), document.Style{}))
	for _, want := range []string{"queueing", "300", "900", "40", "70", "ms"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "nothing to replay") {
		t.Errorf("it says that it knows nothing:\n%s", &out)
	}
}
