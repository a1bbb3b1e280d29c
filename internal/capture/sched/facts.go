package sched

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// passesState reports whether sched_switch passes the state that a thread left with: Linux
// 5.18 on. Before, it is read from the thread, and may have changed by then.
func passesState(spec *btf.Spec) (bool, error) {
	var hook *btf.Typedef
	if err := spec.TypeByName("btf_trace_sched_switch", &hook); err != nil {
		return false, fmt.Errorf("look sched_switch up in the kernel's BTF: %w", err)
	}
	if p, ok := hook.Type.(*btf.Pointer); ok {
		if proto, ok := p.Target.(*btf.FuncProto); ok {
			return len(proto.Params) >= 5, nil // a cookie comes first
		}
	}
	return false, nil
}

// casts reports whether programs can read through any pointer without a helper's call: Linux 6.2 on.
func casts(spec *btf.Spec) bool {
	var f *btf.Func
	return spec.TypeByName("bpf_rdonly_cast", &f) == nil
}

// setConstants puts what the programs must know into their constants.
func setConstants(spec *ebpf.CollectionSpec, opts Options) error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("read the kernel's BTF: %w", err)
	}
	state, err := passesState(kernel)
	if err != nil {
		return err
	}
	values := map[string]any{
		"has_state_argument": state,
		"has_cast":           !opts.noCast && casts(kernel),
		"slice_budget":       perSlice(opts.Budget),
		"slice_share":        perShare(opts.Budget),
		"fd_calls":           callBits(descriptorCalls()),
	}
	var errs []error
	for name, value := range values {
		v := spec.Variables[name]
		if v == nil {
			errs = append(errs, fmt.Errorf("the programs have no constant %s", name))
			continue
		}
		errs = append(errs, v.Set(value))
	}
	return errors.Join(errs...)
}

// perSlice returns how many intervals of a budget per second fall into one slice.
func perSlice(budget int) uint64 {
	return max(1, uint64(min(budget, maxBudget))*sliceNS/1_000_000_000)
}

// perShare returns how many of these a CPU takes at once: few enough that what CPUs have taken and
// do not use is a small part.
func perShare(budget int) uint64 {
	return min(max(1, perSlice(budget)/256), 32)
}
