// Package bpf holds the BPF programs and the Go code that loads them, which
// bpf2go makes out of the C files next to it.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type event -type event_kind -type event_flags -type call_shape -type loss_reason -type skips -cflags "-O2 -g -Wall -Werror -fno-strict-aliasing -Iheaders" Calls cuda.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -cflags "-O2 -g -Wall -Werror -Iheaders" Process process.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type sample -type python_frame -type python_layout -type sampled_process -type python_walk -type sample_count -cflags "-O2 -g -Wall -Werror -Iheaders" Sample sample.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type thread_state -type followed_process -type unseen_thread -type switch_count -type offcpu_flags -type offcpu_mark -cflags "-O2 -g -Wall -Werror -Iheaders" Sched sched.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type dumped_thread -cflags "-O2 -g -Wall -Werror -Iheaders" Dump dump.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type arm_caller -type arm_order -type arm_stop -type arm_filter -cflags "-O2 -g -Wall -Werror -Iheaders" Arm arm.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type gate_control -type gate_state -cflags "-O2 -g -Wall -Werror -Iheaders" Gate gate.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type memory_kind -type memory_device -type memory_block -type memory_record -type memory_stack -type memory_count -cflags "-O2 -g -Wall -Werror -Iheaders" Memory memory.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -go-package bpf -target amd64,arm64 -type request_kind -type request_count -type request_process -type request_record -cflags "-O2 -g -Wall -Werror -Iheaders" Request request.bpf.c
