// Package bpf holds the BPF programs and the Go code that loads them, which
// bpf2go makes out of the C files next to it.
package bpf

//go:generate -command bpf2go go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 -cflags "-O2 -g -Wall -Werror -Iheaders"
//go:generate bpf2go -type event -type event_kind -type event_flags -type call_shape -type loss_reason -type skips Calls cuda.bpf.c -- -fno-strict-aliasing
//go:generate bpf2go Process process.bpf.c
//go:generate bpf2go -type sample -type python_frame -type python_layout -type sampled_process -type python_walk -type sample_count Sample sample.bpf.c
//go:generate bpf2go -type thread_state -type followed_process -type unseen_thread -type switch_count -type offcpu_flags -type offcpu_mark Sched sched.bpf.c
//go:generate bpf2go -type dumped_thread Dump dump.bpf.c
//go:generate bpf2go -type arm_caller -type arm_order -type arm_stop -type arm_filter Arm arm.bpf.c
//go:generate bpf2go -type gate_control -type gate_state Gate gate.bpf.c
//go:generate bpf2go -type memory_kind -type memory_device -type memory_block -type memory_record -type memory_stack -type memory_count -type driver_call_kind Memory memory.bpf.c
//go:generate bpf2go -type request_kind -type request_count -type request_process -type request_record Request request.bpf.c
