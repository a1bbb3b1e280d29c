package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/report/document"
)

const topHelp = `top shows what the daemon watches, live: how busy each target's GPU is, where its time goes now, its
iterations a second, and what watching costs. Enter opens a second screen for a target: the last minute, what to change,
threads and kernels.

    inferscope top
    inferscope top --once --json       one snapshot, for programs

Keys: arrows, PgUp, PgDn, Home, End move; Enter opens, Esc goes back; F4 or \ filters; F6 or > chooses the order, I
reverses it; Z pauses; F1 or h explains; q or F10 quits.`

// Intervals and limits of top.
const (
	topWindow    = 10 * time.Second // of each target, for the table
	detailWindow = time.Minute      // for the second screen
	topShare     = 0.1              // of a CPU that looking may take
	lookTime     = 200 * time.Millisecond
)

// topFlags are the flags of top as they were typed.
type topFlags struct {
	every  time.Duration
	once   bool
	asJSON bool
}

func topCommand(g *global) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live where the time of each target goes",
		Long:  topHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.top(cmd.Context(), &f) },
	}
	cmd.Flags().DurationVar(&f.every, "every", 2*time.Second,
		"refresh interval; longer if refreshing takes more than a tenth of a CPU")
	cmd.Flags().BoolVar(&f.once, "once", false, "print one table and end")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func (g *global) top(ctx context.Context, f *topFlags) error {
	if f.every < 100*time.Millisecond || f.every > time.Hour {
		return clierror.New(clierror.Usage, "write it like --every 2s",
			fmt.Errorf("--every: %s is not 100ms to 1h", f.every))
	}
	if f.asJSON && !f.once {
		return clierror.New(clierror.Usage, "add --once", errors.New("--json is for one look"))
	}
	client, err := g.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	w := &looker{client: client, margin: g.margin}
	if f.once {
		return g.topOnce(ctx, w, f)
	}
	tty, ok := g.stdout.(*os.File)
	if _, is := terminal(g.stdout); !ok || !is {
		return clierror.New(clierror.Usage, "use --once, with --json for programs", errors.New("top is for a terminal"))
	}
	style := styleOf(tty, g.environ)
	m := newTopModel(style.Color)
	m.look = func(m *topModel) tea.Cmd {
		a := ask{number: m.asked, before: m.last, open: m.open}
		if !m.urgent && m.last != nil {
			a.wait = f.every
		}
		return func() tea.Msg { return w.next(ctx, a) }
	}
	program := tea.NewProgram(m, tea.WithContext(ctx), tea.WithOutput(tty), tea.WithEnvironment(g.environ))
	ended, err := program.Run()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("drawing on the terminal: %w", err)
	}
	if last, ok := ended.(*topModel); ok && last.failed != nil {
		return last.failed
	}
	return nil
}

func (g *global) topOnce(ctx context.Context, w *looker, f *topFlags) error {
	done := g.progress(ctx, progressAfter, func(passed time.Duration) string {
		return fmt.Sprintf("looking at the targets: %.0f s", passed.Seconds())
	})
	s := w.all(ctx)
	done()
	if s.err != nil {
		return s.err
	}
	if f.asJSON {
		return writeJSON(g.stdout, s)
	}
	if len(s.Targets) == 0 {
		fmt.Fprintln(g.stderr, "inferscope: the daemon watches no process; inferscope ps lists those that use a GPU")
		return nil
	}
	d := &document.Document{}
	d.Add(topTable(s.Targets))
	return document.Text(g.stdout, d, styleOf(g.stdout, g.environ))
}

// snapshot is the result of one refresh.
type snapshot struct {
	Kind    string      `json:"kind"`   // "inferscope.top"
	Schema  int         `json:"schema"` // 1: within one schema fields are only added
	Window  float64     `json:"window_seconds"`
	Daemon  api.Self    `json:"daemon"`
	Uptime  float64     `json:"daemon_uptime_seconds"`
	Targets []topTarget `json:"targets"`

	detail *document.Document // of the target whose screen is open
	number int                // of the ask that it answers
	err    error
}

// topTarget is a row of the table.
type topTarget struct {
	PID     uint32          `json:"pid"`
	Comm    string          `json:"comm"`
	Cmdline string          `json:"cmdline"`
	State   api.TargetState `json:"state"`
	GPUs    []string        `json:"gpus,omitempty"`
	Pod     string          `json:"pod,omitempty"`
	Cost    *float64        `json:"overhead,omitempty"` // share of the target's time; missing where nobody measured it yet
	Now     *report.Glance  `json:"now,omitempty"`      // missing where nothing was recorded
	Error   string          `json:"error,omitempty"`    // why it is missing
}

// looker fetches and analyzes the data of top.
type looker struct {
	client *api.Client
	margin uint64

	mu   sync.Mutex    // one look at a time
	turn int           // whose turn it is among the targets that are looked at one by one
	took time.Duration // the last look
}

// ask is what a refresh fetches.
type ask struct {
	number int
	before *snapshot
	open   uint32        // pid of the target whose screen is open; 0: none
	wait   time.Duration // before it; 0: at once
}

// targets fetches everything that needs no recording.
func (w *looker) targets(ctx context.Context) *snapshot {
	s := &snapshot{Kind: "inferscope.top", Schema: 1, Window: topWindow.Seconds(), Targets: []topTarget{}}
	status, err := w.client.Status(ctx)
	if err != nil {
		s.err = err
		return s
	}
	s.Daemon, s.Uptime = status.Self, status.Uptime
	cost := map[uint32]float64{}
	for i := range status.Overhead {
		cost[status.Overhead[i].Target] = status.Overhead[i].Total.Share
	}
	for i := range status.Targets {
		t := &status.Targets[i]
		if ended(t) {
			continue
		}
		line := topTarget{
			PID:     t.PID,
			Comm:    format.Clean(t.Comm),
			Cmdline: format.Clean(t.Cmdline),
			State:   t.State,
			GPUs:    t.GPUs,
			Pod:     placeName(&t.Place),
		}
		if share, ok := cost[t.PID]; ok {
			line.Cost = &share
		}
		s.Targets = append(s.Targets, line)
	}
	slices.SortFunc(s.Targets, func(a, b topTarget) int { return cmp.Compare(a.PID, b.PID) })
	return s
}

// glance fetches and analyzes the last seconds of a target.
func (w *looker) glance(ctx context.Context, t *topTarget) {
	m, err := w.model(ctx, t.PID, topWindow)
	if err != nil {
		t.Error = format.Clean(err.Error())
		return
	}
	now := report.Look(m)
	t.Now, t.Error = &now, ""
}

func (w *looker) model(ctx context.Context, pid uint32, last time.Duration) (*report.Model, error) {
	rec, err := w.client.Recording(ctx, pid, api.Window{Last: last})
	if err != nil {
		return nil, err
	}
	return report.NewWith(rec, report.Options{ClockMargin: w.margin}), nil
}

// all refreshes every target.
func (w *looker) all(ctx context.Context) *snapshot {
	s := w.targets(ctx)
	for i := range s.Targets {
		if s.Targets[i].State != api.Attaching {
			w.glance(ctx, &s.Targets[i])
		}
	}
	return s
}

// next waits until the next refresh is due and fetches one target in turn, because recordings are expensive, and the
// one that is open in the detail view. The others keep their previous values.
func (w *looker) next(ctx context.Context, a ask) *snapshot {
	if a.wait > 0 {
		w.mu.Lock()
		wait := max(a.wait, time.Duration(float64(w.took)/topShare))
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return &snapshot{err: ctx.Err(), number: a.number}
		case <-time.After(wait):
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	began := time.Now()
	defer func() { w.took = time.Since(began) }()
	s := w.targets(ctx)
	s.number = a.number
	if s.err != nil {
		return s
	}
	s.keep(a.before)
	if a.open != 0 {
		s.show(w.model(ctx, a.open, detailWindow))
		return s
	}
	for range s.Targets {
		w.turn = (w.turn + 1) % len(s.Targets)
		if t := &s.Targets[w.turn]; t.State != api.Attaching {
			w.glance(ctx, t)
			if time.Since(began) > lookTime {
				break
			}
		}
	}
	return s
}

// keep copies the previous values of targets that were not refreshed.
func (s *snapshot) keep(before *snapshot) {
	if before == nil {
		return
	}
	for i := range s.Targets {
		for j := range before.Targets {
			if before.Targets[j].PID == s.Targets[i].PID {
				s.Targets[i].Now, s.Targets[i].Error = before.Targets[j].Now, before.Targets[j].Error
			}
		}
	}
}

// show renders the detail view.
func (s *snapshot) show(m *report.Model, err error) {
	if err != nil {
		s.detail = &document.Document{}
		s.detail.Add(document.Paragraph(format.CleanText(err.Error())))
		return
	}
	s.detail = report.Live(m, false)
}

// topTable is the table of --once.
func topTable(targets []topTarget) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("pid", 0),
		document.Left("Process", 0),
		document.Right("GPU busy", 0),
		document.Left("Most time", 0),
		document.Right("Share", 0),
		document.Right("Iterations/s", 1),
		document.Right("Requests/s", 1),
		document.Right("TTFT p50", 1),
		document.Right("Cost", 1),
		document.Left("Pod", 3),
		document.Left("Change first", 2),
	}}
	for i := range targets {
		c := targets[i].cells()
		t.Row(c.pid, c.name, c.busy, c.part, c.share, c.rate, c.requests, c.first, c.cost, targets[i].Pod, c.finding)
	}
	if !slices.ContainsFunc(targets, func(t topTarget) bool { return t.Pod != "" }) {
		t.Drop("Pod")
	}
	if !slices.ContainsFunc(targets, func(t topTarget) bool { return t.serves() }) {
		t.Drop("Requests/s")
		t.Drop("TTFT p50")
	}
	return t
}
