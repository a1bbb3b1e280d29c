package feature

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Check reports whether the daemon can work here: nil, or a clierror.Permission that names
// the missing capabilities, or a clierror.Unsupported that names what the kernel lacks.
// What could not be told is let pass: loading the programs will tell.
func Check() error { return Prober{}.Detect().Check() }

// Check is the function Check for what was found before.
func (h Host) Check() error {
	for _, check := range []func() error{
		h.checkNamespace, h.checkCapabilities, h.checkLockdown, h.checkKernel, h.checkUprobes,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkNamespace: the kernel reports pids of the initial namespace, and would take
// --pid for one of them.
func (h Host) checkNamespace() error {
	if h.InitialPIDNS != No {
		return nil
	}
	return clierror.New(
		clierror.Unsupported,
		"run it on the host, or its container with --pid=host (Kubernetes: hostPID: true)",
		errors.New(
			"this is not the machine's initial pid namespace, so that pids here are not those that the kernel reports",
		),
	)
}

func (h Host) checkCapabilities() error {
	if !h.Capabilities.Known {
		return nil
	}
	var names, uses []string
	for _, n := range h.Capabilities.Missing() {
		if n.Optional {
			continue
		}
		for _, c := range n.Needs {
			names = append(names, c.String())
		}
		uses = append(uses, n.For)
	}
	if len(names) == 0 {
		return nil
	}
	return clierror.New(clierror.Permission, "run it with sudo, or grant "+strings.Join(names, ", "),
		fmt.Errorf("missing %s, needed for %s", strings.Join(names, ", "), strings.Join(uses, " and ")))
}

func (h Host) checkLockdown() error {
	if h.Lockdown != "confidentiality" {
		return nil
	}
	return clierror.New(clierror.Unsupported,
		"boot without lockdown=confidentiality; lockdown=integrity is no obstacle",
		errors.New("the kernel is locked down for confidentiality, so that no BPF program may read memory"))
}

func (h Host) checkKernel() error {
	for _, name := range []Name{BTF, RingBuffer, TaskStorage, Tracepoint} {
		f := h.Of(name)
		if f.Answer == No {
			return clierror.New(clierror.Unsupported, hint(name), fmt.Errorf("this kernel has no %s: %w", name, f.Err))
		}
		if denied(f.Err) {
			return refused(name, f.Err)
		}
	}
	return nil
}

func hint(name Name) string {
	if name == BTF {
		return "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of all larger distributions are"
	}
	return "use Linux 5.15 or newer"
}

// checkUprobes: one way to attach is enough. The oldest takes a capability more.
func (h Host) checkUprobes() error {
	multi, perf := h.Of(UprobeMulti), h.Of(PerfCookie)
	if multi.Answer != No {
		return nil
	}
	if perf.Answer == No {
		return clierror.New(clierror.Unsupported, hint(PerfCookie),
			fmt.Errorf("this kernel has neither %s nor %s: %w", multi.Name, perf.Name, perf.Err))
	}
	if h.Capabilities.Known && !h.Capabilities.Has(SysAdmin) {
		return clierror.New(
			clierror.Permission,
			"run it with sudo, or grant CAP_SYS_ADMIN too, or use Linux 6.6 or newer",
			errors.New("missing CAP_SYS_ADMIN, needed for probing through perf events on a kernel before 6.6"),
		)
	}
	return nil
}

func denied(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// refused: the capabilities are there, yet the kernel says no. In a container that
// is a seccomp profile or a user namespace, whose capabilities are not the machine's.
func refused(name Name, err error) error {
	return clierror.New(clierror.Permission,
		"leave the user namespace, or let the seccomp profile allow bpf and perf_event_open",
		fmt.Errorf("the kernel refuses %s although the capabilities are there: %w", name, err))
}
