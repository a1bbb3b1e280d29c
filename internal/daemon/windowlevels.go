package daemon

import (
	"fmt"
	"time"

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/recording"
)

// gpuWindows is a source that records in windows. The period of its windows can be set, and it measures their cost.
type gpuWindows interface {
	// WindowPeriod returns the configured time between the beginnings of two windows; 0 without windows.
	WindowPeriod() time.Duration
	// SetWindowPeriod sets the shortest period for the windows of all processes.
	SetWindowPeriod(least time.Duration)
	// WindowCost returns the share of its time that windows cost the process that pays most; without a Basis before
	// the first window has ended.
	WindowCost(pids []uint32) recording.Cost
	// WindowNear reports whether a window of one of these processes is open or opens within the given time. It is
	// false if windows leave no room for measuring.
	WindowNear(pids []uint32, within time.Duration) bool
}

// windowSource lets the overhead governor set the window period by levels.
type windowSource struct {
	windows   gpuWindows
	period    time.Duration
	levels    []overhead.Level
	level     int
	processes func(root uint32) []uint32
}

// rarer is how many times as rare windows are at each level but the last, which is no windows: once an hour.
func rarer() []int { return []int{1, 2, 4, 8, 15} }

// noWindows is the period that stands for none.
const noWindows = time.Hour

func newWindowSource(w gpuWindows, processes func(uint32) []uint32) *windowSource {
	s := &windowSource{windows: w, period: w.WindowPeriod(), processes: processes}
	for i, n := range rarer() {
		l := overhead.Level{Name: "every " + s.times(n).String()}
		if i > 0 {
			l.Loses = fmt.Sprintf("GPU activity is seen %d times as rarely", n)
		}
		s.levels = append(s.levels, l)
	}
	s.levels = append(s.levels,
		overhead.Level{Name: recording.LevelOff, Loses: "GPU activity, but for a moment each hour"})
	w.SetWindowPeriod(s.period)
	return s
}

// times returns n times the configured period.
func (s *windowSource) times(n int) time.Duration { return time.Duration(n) * s.period }

// Name returns the name of the source in status and reports.
func (s *windowSource) Name() string { return "gpu windows" }

// Levels implements overhead.Source.
func (s *windowSource) Levels() []overhead.Level { return s.levels }

// Level implements overhead.Source.
func (s *windowSource) Level() int { return s.level }

// SetLevel sets the period of the level.
func (s *windowSource) SetLevel(level int) error {
	if level < 0 || level >= len(s.levels) {
		return fmt.Errorf("windows have no level %d", level)
	}
	s.level = level
	period := noWindows
	if level < len(rarer()) {
		period = s.times(rarer()[level])
	}
	s.windows.SetWindowPeriod(period)
	return nil
}

// Runs counts nothing: windows are measured by Cost.
func (s *windowSource) Runs(uint32) overhead.Runs { return overhead.Runs{} }

// Cost returns the share of a target's time that windows cost.
func (s *windowSource) Cost(root uint32) recording.Cost {
	return s.windows.WindowCost(s.processes(root))
}

// Near reports whether a window of a target is open, or opens within a time.
func (s *windowSource) Near(root uint32, within time.Duration) bool {
	return s.windows.WindowNear(s.processes(root), within)
}
