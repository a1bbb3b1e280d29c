package sched

import (
	"slices"

	"golang.org/x/sys/unix"
)

// descriptorCalls returns the system calls that can block and whose first argument
// is a file descriptor, for the architecture that this runs on.
func descriptorCalls() []int { return slices.Concat(epollCalls(), fileCalls()) }

// fileCalls are those of which the file's name tells anything. Of epoll the call says
// it all, and its inode is that of every eventfd as well.
func fileCalls() []int {
	return []int{
		unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_PREADV2,
		unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2,
		unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG,
		unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG,
		unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_CONNECT,
		unix.SYS_IO_URING_ENTER,
		unix.SYS_IOCTL, unix.SYS_FCNTL, unix.SYS_FLOCK, unix.SYS_CLOSE,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE,
		unix.SYS_FALLOCATE, unix.SYS_FTRUNCATE, unix.SYS_GETDENTS64, unix.SYS_LSEEK, unix.SYS_FADVISE64,
		unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_TEE, unix.SYS_VMSPLICE, unix.SYS_COPY_FILE_RANGE,
		unix.SYS_READAHEAD,
	}
}

// callBits is the table that the kernel programs look calls up in: 512 bits.
// Numbers beyond are given up; the highest in use are below 480 (Linux 6.18).
func callBits(calls []int) [8]uint64 {
	var bits [8]uint64
	for _, nr := range calls {
		if nr >= 0 && nr < 64*len(bits) {
			bits[nr/64] |= 1 << (nr % 64)
		}
	}
	return bits
}
