package sched

import "golang.org/x/sys/unix"

func epollCalls() []int { return []int{unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2} }
