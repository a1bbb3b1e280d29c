package fleet

import (
	"time"

	"golang.org/x/sys/unix"
)

// What thinking about stretches may take of a core in the long run, and at once. What is over that is not thought
// about: of many busy targets each is looked at less often.
const (
	thinkShare = 0.1
	thinkBurst = 10 * time.Second
)

// budget is CPU time that comes at a rate.
type budget struct {
	left time.Duration
	at   time.Time
}

// may reports whether anything is left.
func (b *budget) may(now time.Time) bool {
	if b.at.IsZero() {
		b.left = thinkBurst
	} else {
		b.left = min(thinkBurst, b.left+time.Duration(thinkShare*float64(now.Sub(b.at))))
	}
	b.at = now
	return b.left > 0
}

func (b *budget) spend(d time.Duration) { b.left -= d }

// spent returns the CPU time of this process.
func spent() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
