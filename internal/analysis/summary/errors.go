package summary

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/cuda"
)

// errorCodes counts the errors that CUDA returned.
type errorCodes struct {
	counts map[errorKey]uint64
}

type errorKey struct {
	function, library string
	code              int32
}

func newErrorCodes() *errorCodes { return &errorCodes{counts: map[errorKey]uint64{}} }

func (e *errorCodes) count(o *op) {
	e.counts[errorKey{o.row.Name, o.row.Library, o.call.Result}]++
}

func (e *errorCodes) result() []ErrorCode {
	out := []ErrorCode{}
	for k, n := range e.counts {
		library := cuda.Library(k.library)
		if _, hip := cuda.MatchHIP(k.function); hip { // its codes have names of their own
			library = cuda.HIP
		}
		out = append(out, ErrorCode{
			Function: k.function,
			Code:     k.code,
			Name:     cuda.ResultName(library, k.code),
			Count:    n,
		})
	}
	slices.SortFunc(out, func(x, y ErrorCode) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Function, y.Function), cmp.Compare(x.Code, y.Code))
	})
	return out
}
