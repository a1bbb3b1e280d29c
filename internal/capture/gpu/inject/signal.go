package inject

import "golang.org/x/sys/unix"

// harmless are the signals that do nothing where nobody handles them (signal(7)), the
// least used first. One of them stops the thread, so that a stray one, which is
// delivered for good when the tracer dies in the wrong moment, does nothing either.
// SIGCONT comes last: it would wake a process that is stopped.
func harmless() []unix.Signal {
	return []unix.Signal{unix.SIGURG, unix.SIGWINCH, unix.SIGCHLD, unix.SIGCONT}
}

// signalFor chooses the signal to stop a thread with: the process does not handle
// it, and the thread does not block it. 0 where there is none.
func signalFor(s status) unix.Signal {
	for _, sig := range harmless() {
		if has(s.caught|s.blocked, sig) {
			continue
		}
		return sig
	}
	return 0
}

func has(set uint64, sig unix.Signal) bool { return set>>(uint(sig)-1)&1 != 0 }

// heldBack is what a thread blocks while it runs our call: everything but what its
// own instructions raise, which would kill it if it were blocked.
func heldBack(before uint64) uint64 {
	set := ^uint64(0)
	for _, sig := range [...]unix.Signal{
		unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS, unix.SIGKILL, unix.SIGSTOP,
	} {
		set &^= 1 << (uint(sig) - 1)
	}
	return set | before
}
