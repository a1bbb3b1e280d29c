package uprobe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From include/uapi/linux/bpf.h. The links are made by the system call itself:
// cilium/ebpf 0.22 has no call for sessions, and takes a path where an already
// validated file is to be probed.
const (
	cmdLinkCreate = 28

	attachPerfEvent     = 41
	attachUprobeMulti   = 48
	attachUprobeSession = 57

	flagMultiReturn = 1 // BPF_F_UPROBE_MULTI_RETURN
)

// errNotSupported is the kernel-internal ENOTSUPP, which uprobes answer with for an
// instruction that they cannot probe (include/linux/errno.h).
const errNotSupported = unix.Errno(524)

// batch is a set of sites that one program is attached to in one way.
type batch struct {
	name   string // of the program, for errors
	prog   int    // descriptor of the program
	attach uint32 // attachUprobeMulti, attachUprobeSession or attachPerfEvent
	ret    bool   // at the return instead of the site
	sites  []Site
}

// place is where a batch goes.
type place struct {
	file *os.File
	pid  uint32
	pmu  uint32 // type of the uprobe PMU; attachPerfEvent only

	noReturns error // why returns are not probed; nil: they are
}

// multiAttr is union bpf_attr for BPF_LINK_CREATE of a uprobe_multi link. Pointers
// are pointers, so that the garbage collector knows them.
type multiAttr struct {
	prog, target, attach, linkFlags uint32
	path                            *byte
	offsets                         *uint64
	refCounts                       *uint64
	cookies                         *uint64
	count, flags, pid, _            uint32
}

// perfAttr is union bpf_attr for BPF_LINK_CREATE of a perf event link.
type perfAttr struct {
	prog, target, attach, flags uint32
	cookie                      uint64
}

// link attaches all of b's sites, or none, and returns a descriptor of the link.
func link(b batch, at place) (int, error) {
	defer runtime.KeepAlive(at.file)
	if b.attach == attachPerfEvent {
		return linkPerf(b, at)
	}
	return linkMulti(b, at)
}

func linkMulti(b batch, at place) (int, error) {
	path, err := unix.BytePtrFromString(pathOf(at.file))
	if err != nil {
		return -1, fmt.Errorf("path %q: %w", pathOf(at.file), err)
	}
	offsets := make([]uint64, len(b.sites))
	cookies := make([]uint64, len(b.sites))
	for i, s := range b.sites {
		offsets[i], cookies[i] = s.Offset, s.Cookie
	}
	attr := multiAttr{
		prog: uint32(b.prog), attach: b.attach, path: path,
		offsets: &offsets[0], cookies: &cookies[0], count: uint32(len(b.sites)), pid: at.pid,
	}
	if b.ret {
		attr.flags = flagMultiReturn
	}
	return linkCreate(unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// linkPerf attaches the one site of b through a perf event of the uprobe PMU.
// Breakpoints go into the address space of the process, so one event covers all
// its threads. The link keeps the event alive.
func linkPerf(b batch, at place) (int, error) {
	path, err := unix.BytePtrFromString(pathOf(at.file))
	if err != nil {
		return -1, fmt.Errorf("path %q: %w", pathOf(at.file), err)
	}
	ev := unix.PerfEventAttr{
		Type: at.pmu,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Ext1: uint64(uintptr(unsafe.Pointer(path))), // uprobe_path
		Ext2: b.sites[0].Offset,                     // probe_offset
	}
	if b.ret {
		ev.Config = 1 // /sys/bus/event_source/devices/uprobe/format/retprobe: config:0
	}
	fd, err := unix.PerfEventOpen(&ev, int(at.pid), -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(path)
	if err != nil {
		return -1, fmt.Errorf("perf_event_open: %w", describe(err))
	}
	defer unix.Close(fd)
	attr := perfAttr{prog: uint32(b.prog), target: uint32(fd), attach: attachPerfEvent, cookie: b.sites[0].Cookie}
	return linkCreate(unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// linkCreate makes a BPF link; its descriptor is closed on exec, as all of BPF's are.
func linkCreate(attr unsafe.Pointer, size uintptr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, cmdLinkCreate, uintptr(attr), size)
	if errno != 0 {
		return -1, fmt.Errorf("bpf(BPF_LINK_CREATE): %w", describe(errno))
	}
	return int(fd), nil
}

// describe gives the one error that x/sys does not know its name.
func describe(err error) error {
	if errors.Is(err, errNotSupported) {
		return fmt.Errorf("the kernel cannot probe this instruction: %w", unix.ENOTSUP)
	}
	return err
}

// uprobePMU reads the type of the uprobe PMU, which perf_event_open wants.
func uprobePMU() (uint32, error) {
	const file = "/sys/bus/event_source/devices/uprobe/type"
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("the kernel has no uprobe perf events: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return uint32(n), nil
}

// concerns reports whether err can be about one site of many, so that leaving out
// the right ones would help. Everything else concerns the process, the file, the
// privileges or this daemon's own limits.
func concerns(err error) bool {
	for _, errno := range []unix.Errno{
		unix.EINVAL, unix.ENOTSUP, unix.EIO, unix.ENXIO, unix.EFAULT, unix.EBUSY, unix.EEXIST, unix.ENOEXEC,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// linkID asks the kernel for the id of the link behind fd.
func linkID(fd int) (uint32, error) {
	const cmdObjInfo = 15
	info := make([]byte, 64) // struct bpf_link_info begins with type, id
	attr := struct {
		fd, size uint32
		info     *byte
	}{uint32(fd), uint32(len(info)), &info[0]}
	if _, _, errno := unix.Syscall(
		unix.SYS_BPF, cmdObjInfo, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr),
	); errno != 0 {
		return 0, fmt.Errorf("bpf(BPF_OBJ_GET_INFO_BY_FD): %w", errno)
	}
	return binary.NativeEndian.Uint32(bytes.Clone(info[4:8])), nil
}
