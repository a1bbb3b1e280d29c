package gpu

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// guard looks at what the windows of a session leave in its process's memory, and opens no
// more when that is too much. The caller holds the lock.
func (s *Source) guard(q *session, now uint64) {
	if q.orders.mode != modeWindows {
		q.windows.leak.forget()
		return
	}
	busy := q.agent.state == stateOpening || q.agent.state == stateOpen || q.agent.state == stateClosing ||
		q.agent.state == stateLeaving
	q.windows.leak.note(now, q.ring.load32(ringWindows), busy, func() (int64, bool) { return ownMemory(q.process) })
	if q.windows.leak.trial.guilty {
		s.giveUp(q)
		return
	}
	l := &q.windows.limiter
	rested, limited := l.rest(q.windows.leak.rest()), l.set(limitLeak, q.windows.leak.leakPeriod(), s.opts.Period)
	if rested || limited {
		s.retime(q)
	}
}

// giveUp ends the agent of a process that windows make grow, for good. The caller holds the lock.
func (s *Source) giveUp(q *session) {
	q.orders.mode = modeQuit
	s.quit(q)
	s.step(
		q,
		isHarmful,
		fmt.Sprintf(
			"recording windows left %d MB in this process's memory, more than the %d MB that they may: no more are "+
				"opened in it. "+
				"Restart it to have the memory back; then use --gpu off or a longer --gpu-period, or name another "+
				"libcupti with --cupti, and report the version of CUPTI",
			megabytes(q.windows.leak.left()),
			megabytes(maxLeft),
		),
	)
	s.opts.Log.Warn(
		"windows make a process grow: its GPU activity is not recorded any more, the rest goes on",
		zap.Uint32("pid", q.process.PID),
		zap.Int64("bytes", q.windows.leak.left()),
	)
}

// leaving says what windows have left so far, where that is worth a word.
func (q *session) leaving() string {
	if q.windows.leak.onTrial() {
		return fmt.Sprintf(
			"no window opens for %s, to see whether windows make this process grow or it grows by itself",
			time.Duration(q.windows.leak.trial.length).Round(time.Second),
		)
	}
	if left := q.windows.leak.left(); left >= sayLeft {
		said := fmt.Sprintf(
			"windows have left %d MB in this process's memory so far; at %d MB no more are opened",
			megabytes(left),
			megabytes(maxLeft),
		)
		if least := q.windows.limiter.least[limitLeak]; least > 0 {
			said += fmt.Sprintf("; so that it does not come to that, they are at least %s apart", rounded(least))
		}
		return said
	}
	return ""
}

func megabytes(n int64) int64 { return (n + 500_000) / 1_000_000 }

// ownMemory returns the resident bytes that are a process's own: anonymous memory, without
// what is mapped of files, which the kernel can take back, and what is shared (proc(5), statm).
// False where they cannot be known.
func ownMemory(p *proc.Process) (int64, bool) {
	text, err := os.ReadFile(procPath(p, "statm"))
	if err != nil || !p.Alive() {
		return 0, false
	}
	m, ok := procfile.ParseStatm(text)
	return m.Resident - m.Shared, ok
}
