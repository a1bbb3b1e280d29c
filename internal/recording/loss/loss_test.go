package loss_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/loss"
)

func TestKindsDescribeEachReasonOnce(t *testing.T) {
	severities := map[loss.Severity]bool{loss.Info: true, loss.Warning: true, loss.Error: true}
	seen := map[loss.Reason]bool{}
	for _, k := range loss.Kinds() {
		if seen[k.Reason] {
			t.Errorf("%s is described twice", k.Reason)
		}
		seen[k.Reason] = true
		if !severities[k.Severity] {
			t.Errorf("%s has the unknown severity %q", k.Reason, k.Severity)
		}
		if k.Means == "" || strings.HasSuffix(k.Means, ".") || strings.HasSuffix(k.Do, ".") {
			t.Errorf("%s: %q, %q: reports end the sentences", k.Reason, k.Means, k.Do)
		}
		if got := loss.Describe(k.Reason); got != k {
			t.Errorf("Describe(%s) = %+v, want %+v", k.Reason, got, k)
		}
	}
	for _, r := range []loss.Reason{
		loss.RingFull, loss.CallDepth, loss.ThreadStorage, loss.ReturnOnly, loss.Malformed, loss.Overwritten,
		loss.ArgumentFault, loss.ProbeFailed, loss.ExpensivePoint,
		loss.LateProbe, loss.ProcessEvents, loss.LibraryRefused,
	} {
		if !seen[r] {
			t.Errorf("%s is not described", r)
		}
	}
}

func TestUnknownReasonDescribesItself(t *testing.T) {
	k := loss.Describe("melted")
	if k.Reason != "melted" || k.Means != "melted" || k.Severity != loss.Warning {
		t.Errorf("Describe of an unknown reason = %+v", k)
	}
}
