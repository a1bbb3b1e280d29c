package cpu

import (
	"path"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// placeOf describes where a stack is in a few words: the CUDA call that it is in, if any, and the first Python function
// that is not plumbing; without Python, the first informative native function from the leaf.
func placeOf(frames []recording.Frame) string {
	python, native, call := "", "", ""
	plumbing := ""
	for i := range frames {
		f := &frames[i]
		switch {
		case f.Kind == recording.PythonFrame && f.File == "": // a state of the interpreter: "[garbage collection]"
		case f.Kind == recording.PythonFrame && isPlumbing(f.File):
			if plumbing == "" {
				plumbing = PythonPlace(f.Name, f.File, f.Line)
			}
		case f.Kind == recording.PythonFrame:
			if python == "" {
				python = PythonPlace(f.Name, f.File, f.Line)
			}
		case f.Kind == recording.NativeFrame && isCUDA(f.Name):
			call = f.Name // the outermost one: it is what the program called
		case f.Kind == recording.NativeFrame && native == "" && telling(f):
			native = f.Name
		}
		if python != "" {
			break
		}
	}
	if python == "" {
		python = plumbing
	}
	switch {
	case call != "" && python != "":
		return call + " in " + python
	case call != "":
		return call
	case python != "":
		return python
	case native != "":
		return native
	}
	for i := range frames {
		if !isScheduler(frames[i].Name) {
			return frames[i].Name
		}
	}
	return ""
}

// isScheduler reports whether a function of the kernel is how every thread leaves its CPU or comes back.
func isScheduler(name string) bool {
	name, _, _ = strings.Cut(name, ".") // finish_task_switch.isra.0
	switch name {
	case "schedule",
		"__schedule",
		"schedule_timeout",
		"preempt_schedule",
		"preempt_schedule_common",
		"preempt_schedule_irq",
		"finish_task_switch":
		return true
	}
	return false
}

// PythonPlace writes a place in Python code as "function (file:line)"; what is in no file by its name alone.
func PythonPlace(name, file string, line uint32) string {
	if file == "" {
		return name
	}
	file = ShortFile(file)
	if line == 0 {
		return name + " (" + file + ")"
	}
	return name + " (" + file + ":" + strconv.FormatUint(uint64(line), 10) + ")"
}

// ShortFile cuts off where Python's packages are installed, and of other paths
// everything but the name.
func ShortFile(file string) string {
	for _, root := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex(file, root); i >= 0 {
			return file[i+len(root):]
		}
	}
	if i := strings.LastIndex(file, "/lib/python3"); i >= 0 {
		if _, rest, ok := strings.Cut(file[i+len("/lib/"):], "/"); ok {
			return rest
		}
	}
	return path.Base(file)
}

// isPlumbing reports whether a file only passes on what others want: whoever waits in it
// is better named by who called it.
func isPlumbing(file string) bool {
	switch ShortFile(file) {
	case "threading.py", "queue.py", "selectors.py", "socket.py", "subprocess.py", "contextlib.py", "functools.py",
		"multiprocessing/connection.py", "multiprocessing/queues.py", "multiprocessing/synchronize.py",
		"multiprocessing/popen_fork.py",
		"multiprocessing/util.py", "concurrent/futures/_base.py", "asyncio/base_events.py", "asyncio/runners.py",
		"asyncio/events.py":
		return true
	}
	return false
}

// isCUDA reports whether a native function is CUDA's: cuLaunchKernel, cudaMemcpy.
func isCUDA(name string) bool {
	rest, ok := strings.CutPrefix(name, "cuda")
	if !ok {
		rest, ok = strings.CutPrefix(name, "cu")
	}
	return ok && rest != "" && rest[0] >= 'A' && rest[0] <= 'Z'
}

// telling reports whether a native function says more than that a system call was made.
func telling(f *recording.Frame) bool {
	for _, lib := range []string{"libc.so", "libc-", "libpthread", "ld-linux", "linux-vdso", "libm.so"} {
		if strings.HasPrefix(f.File, lib) {
			return false
		}
	}
	return true
}
