package daemon

import (
	"fmt"
	"time"

	"github.com/inferscope/inferscope/internal/capture/overhead"
)

// gpuWindows is a source whose windows come as often as it is told, and which measures what they take.
type gpuWindows interface {
	// WindowPeriod is from one window's beginning to the next one's, as was asked for; 0: there are no windows.
	WindowPeriod() time.Duration
	// SetWindowPeriod makes windows of all processes as rare, at least. From the first call on the source does not make
	// them rarer by itself because of what they cost.
	SetWindowPeriod(least time.Duration)
	// WindowCost returns what windows take of the time of the process that pays most, and half of its 95% interval;
	// false where that is not known yet.
	WindowCost(pids []uint32) (share, half float64, known bool)
	// WindowNear reports whether a window of one of these processes is open, or opens within a time; false where
	// windows leave no room for that.
	WindowNear(pids []uint32, within time.Duration) bool
}

// windowSource gives windows levels. It implements overhead.Metered.
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
	s.levels = append(s.levels, overhead.Level{Name: "off", Loses: "GPU activity, but for a moment each hour"})
	w.SetWindowPeriod(s.period)
	return s
}

// times is the period at which windows are n times as rare as was asked for.
func (s *windowSource) times(n int) time.Duration { return time.Duration(n) * s.period }

// Name is what the source is called in status and reports.
func (s *windowSource) Name() string { return "gpu windows" }

// Levels are how often windows come.
func (s *windowSource) Levels() []overhead.Level { return s.levels }

// Level is the one in force.
func (s *windowSource) Level() int { return s.level }

// SetLevel makes windows as rare as the level says.
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

// Runs counts nothing: Cost tells what windows take.
func (s *windowSource) Runs(uint32) overhead.Runs { return overhead.Runs{} }

// Cost returns what windows take of a target's time.
func (s *windowSource) Cost(root uint32) (share, half float64, known bool) {
	return s.windows.WindowCost(s.processes(root))
}

// Near reports whether a window of a target is open, or opens within a time.
func (s *windowSource) Near(root uint32, within time.Duration) bool {
	return s.windows.WindowNear(s.processes(root), within)
}
