package outfile

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// act does something with files with the rights of a user; nil are those of this process.
//
// The user's file system ids and groups are taken on by one locked thread, as servers of network file systems do it:
// setfsuid(2) also takes the capabilities off that override file permissions. Unlike a thread that calls setresuid(2),
// or a child, it cannot be signalled or traced by that user meanwhile, and needs no descriptors sent around. Whatever
// is done with a descriptor that was opened this way needs no rights.
func act(as *syscall.Credential, f func() error) error {
	if as == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := own()
		if err != nil {
			done <- err
			return
		}
		if err = (rights{groups: as.Groups, uid: as.Uid, gid: as.Gid}).set(false); err == nil {
			err = f()
		}
		if before.set(true) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine
		done <- err
	}()
	return <-done
}

// rights are the ids by which the kernel judges one thread's use of files.
type rights struct {
	groups   []uint32
	uid, gid uint32
}

// own returns the rights of this process.
func own() (rights, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return rights{}, fmt.Errorf("read the groups of this process: %w", err)
	}
	r := rights{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	for _, g := range groups {
		r.groups = append(r.groups, uint32(g))
	}
	return r, nil
}

// set makes these the rights of this thread. The user comes last on the way to another one, and first on the way back.
func (r rights) set(back bool) error {
	uid := func() error { return setFS(unix.SYS_SETFSUID, r.uid) }
	gid := func() error { return setFS(unix.SYS_SETFSGID, r.gid) }
	steps := []func() error{r.setGroups, gid, uid}
	if back {
		steps = []func() error{uid, gid, r.setGroups}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("take on the rights of user %d for files: %w", r.uid, err)
		}
	}
	return nil
}

// setGroups sets the groups of this thread alone: syscall.Setgroups sets those of all threads.
func (r rights) setGroups() error {
	if _, _, e := unix.RawSyscall(
		unix.SYS_SETGROUPS, uintptr(len(r.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(r.groups))), 0,
	); e != 0 {
		return e
	}
	return nil
}

// setFS calls setfsuid or setfsgid, which report no error: they are asked what holds now.
func setFS(call uintptr, id uint32) error {
	const nobody = ^uintptr(0) // no valid id: the call changes nothing
	_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0)
	if now, _, _ := unix.RawSyscall(call, nobody, 0, 0); uint32(now) != id {
		return unix.EPERM
	}
	return nil
}
