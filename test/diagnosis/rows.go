package diagnosis

import "strings"

// rows are programs that make many small copies, or launch many small kernels, where one would do.
func rows() []scenario {
	return []scenario{
		{
			name:   "forty small uploads",
			script: "kernels 4 gemm_us50; wait; " + strings.Repeat("copyin 16k; ", 40),
			want:   "sync-copy",
			copies: "sync-copy",
		},
		{
			name:   "a kernel for each tensor",
			script: "kernels 4 gemm_us50; burst 252 8 elementwise_us2; wait",
			want:   "launch-overhead",
		},
	}
}

// operators are programs in Python that call operators of a framework: of tensors on the host, and before each launch.
func operators() []scenario {
	return []scenario{
		{name: "operators on the host", script: step + "tensors 4000", python: true, want: "python-work"},
		{
			name:   "operators that launch",
			script: "layers 100 30; wait",
			python: true,
			env:    asOnGPU(),
			want:   "launch-overhead",
		},
		{
			name:   "operators that launch slowly",
			script: "layers 20 400; wait",
			python: true,
			env:    asOnGPU(),
			want:   "launch-overhead",
		},
	}
}

func operatorsTwins() map[string]twin {
	return map[string]twin{
		"operators on the host":        fix(step+"tensors 1000", "faster", "compare_scores=4"),
		"operators that launch":        fix("layers 100 15; wait", "faster", "forward_layers=2"),
		"operators that launch slowly": fix("layers 20 100; wait", "faster", "forward_layers=4"),
	}
}

func rowsTwins() map[string]twin {
	return map[string]twin{
		"forty small uploads": fix("kernels 4 gemm_us50; wait; upload 640k", "merge", "sync-copy"),
		"a kernel for each tensor": fix("kernels 4 gemm_us50; kernels 4 elementwise_us2; wait", "merge",
			"launches").worthOf(32), // 256 kernels become 8
	}
}

// worthOf says how many of the program's kernels each of the twin's stands for.
func (t twin) worthOf(kernels int) twin {
	t.worth = kernels
	return t
}
