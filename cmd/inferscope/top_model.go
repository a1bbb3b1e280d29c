package main

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// mode is the current view of top.
type mode int

const (
	listMode mode = iota
	detailMode
	helpMode
	filterMode // the list, while a filter is typed
)

// order is the sort key of the list.
type order int

const (
	byIdle order = iota // the least busy GPU first
	byRate
	byCost
	byTargetPID
	byTargetName
	byRequests
	orders
)

var orderNames = [orders]string{"idle GPU", "iterations", "cost", "pid", "name", "requests"}

// topModel is the state of top. bubbletea passes it keys and snapshots one at a time.
type topModel struct {
	look          func(*topModel) tea.Cmd // fetches the next snapshot
	color         bool
	width, height int

	last     *snapshot
	mode     mode
	order    order
	inverted bool
	paused   bool
	filter   string
	chosen   uint32 // pid of the line with the cursor
	open     uint32 // pid of the second screen; 0: none
	first    int    // line of the screen's list or text that is at the top
	asked    int    // number of the last ask; answers to others come too late
	urgent   bool   // the next look is wanted at once
	failed   error
}

func newTopModel(color bool) *topModel {
	return &topModel{color: color, width: 80, height: 24}
}

// Init requests the first snapshot.
func (m *topModel) Init() tea.Cmd { return m.look(m) }

// Update handles a key, a resize or a snapshot.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 20), max(msg.Height, 5)
	case *snapshot:
		return m, m.take(msg)
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

// take stores a snapshot and requests the next.
func (m *topModel) take(s *snapshot) tea.Cmd {
	if s.number != m.asked {
		return nil
	}
	if s.err != nil {
		m.failed = s.err
		return tea.Quit
	}
	if m.open == 0 {
		s.detail = nil
	}
	if !m.paused || m.last == nil {
		m.last = s
	}
	return m.ask(false)
}

// ask requests a refresh.
func (m *topModel) ask(urgent bool) tea.Cmd {
	m.asked++
	m.urgent = urgent
	return m.look(m)
}

// key handles a key.
func (m *topModel) key(k string) tea.Cmd {
	if k == "ctrl+c" {
		return tea.Quit
	}
	switch m.mode {
	case filterMode:
		m.typed(k)
		return nil
	case helpMode:
		m.mode = listMode
		if m.open != 0 {
			m.mode = detailMode
		}
		return nil
	}
	switch k {
	case "q", "f10":
		if k == "q" && m.mode == detailMode {
			m.close()
			return nil
		}
		return tea.Quit
	case "f1", "h", "?":
		m.mode = helpMode
	case "Z":
		m.paused = !m.paused
	case "esc", "left", "backspace":
		if m.mode == detailMode {
			m.close()
		} else {
			m.filter = ""
		}
	default:
		before := m.open
		m.move(k)
		if m.open != before {
			return m.ask(true)
		}
	}
	return nil
}

// close returns to the list. A refresh of the detail view that is under way is still answered.
func (m *topModel) close() {
	m.mode, m.open, m.first = listMode, 0, 0
	if m.last != nil {
		m.last.detail = nil
	}
}

// typed appends to the filter.
func (m *topModel) typed(k string) {
	switch r := []rune(m.filter); {
	case k == "enter":
		m.mode = listMode
	case k == "esc":
		m.mode, m.filter = listMode, ""
	case k == "backspace" && len(r) > 0:
		m.filter = string(r[:len(r)-1])
	case k == "space":
		m.filter += " "
	case len([]rune(k)) == 1 && len(r) < 64:
		m.filter += k
	}
}

// move handles the cursor keys and the keys of the list.
func (m *topModel) move(k string) {
	page := max(1, m.body()-1)
	step := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "pgdown": page, "space": page, "home": -1 << 20, "end": 1 << 20}[k]
	if m.mode == detailMode {
		m.first += step
		return
	}
	rows := m.rows()
	at := slices.IndexFunc(rows, func(t topTarget) bool { return t.PID == m.chosen })
	switch k {
	case "enter", "right":
		if at < 0 && len(rows) > 0 {
			at = 0
		}
		if at >= 0 {
			m.mode, m.open, m.chosen, m.first = detailMode, rows[at].PID, rows[at].PID, 0
			if m.last != nil {
				m.last.detail = nil
			}
		}
	case "f4", "\\", "/", "f3":
		m.mode = filterMode
	case "f6", ">", ".":
		m.order = (m.order + 1) % orders
	case "<", ",":
		m.order = (m.order + orders - 1) % orders
	case "I":
		m.inverted = !m.inverted
	}
	if step != 0 && len(rows) > 0 {
		m.chosen = rows[min(max(max(at, 0)+step, 0), len(rows)-1)].PID
	}
}

// rows returns the targets that match the filter, in order.
func (m *topModel) rows() []topTarget {
	if m.last == nil {
		return nil
	}
	var out []topTarget
	want := strings.ToLower(m.filter)
	for i := range m.last.Targets {
		t := &m.last.Targets[i]
		if strings.Contains(strings.ToLower(fmt.Sprint(t.PID, " ", t.Comm, " ", t.Cmdline, " ", t.Pod)), want) {
			out = append(out, *t)
		}
	}
	slices.SortStableFunc(out, func(a, b topTarget) int {
		c := m.order.compare(&a, &b)
		if m.inverted {
			c = -c
		}
		return cmp.Or(c, cmp.Compare(a.PID, b.PID))
	})
	return out
}

func (o order) compare(a, b *topTarget) int {
	switch o {
	case byIdle:
		return cmp.Compare(a.busy(), b.busy())
	case byRate:
		return -cmp.Compare(a.rate(), b.rate())
	case byCost:
		return -cmp.Compare(a.cost(), b.cost())
	case byRequests:
		return -cmp.Compare(a.requests(), b.requests())
	case byTargetName:
		return cmp.Compare(a.Comm, b.Comm)
	}
	return cmp.Compare(a.PID, b.PID)
}

// busy is the sort key for GPU use; unknown sorts last.
func (t *topTarget) busy() float64 {
	if t.Now == nil || !t.Now.Recorded {
		return 2
	}
	return t.Now.Busy
}

func (t *topTarget) rate() float64 {
	if t.Now == nil {
		return 0
	}
	return t.Now.Rate
}

func (t *topTarget) requests() float64 {
	if t.Now == nil {
		return 0
	}
	return t.Now.Requests
}

// serves reports whether the target served requests in the last seconds.
func (t *topTarget) serves() bool { return t.Now != nil && (t.Now.Requests > 0 || t.Now.Open > 0) }

func (t *topTarget) cost() float64 {
	if t.Cost == nil {
		return 0
	}
	return *t.Cost
}

// cells returns the columns of a row.
type cells struct{ pid, name, busy, part, share, rate, requests, first, cost, finding string }

func (t *topTarget) cells() cells {
	c := cells{
		pid:      strconv.FormatUint(uint64(t.PID), 10),
		name:     t.Comm,
		busy:     "-",
		share:    "-",
		rate:     "-",
		requests: "-",
		first:    "-",
		cost:     "-",
	}
	if t.Cost != nil {
		c.cost = format.Percent(max(0, *t.Cost)) // measured, it is below 0 where watching costs less than chance
	}
	if t.Now == nil {
		c.part = string(t.State)
		if t.Error != "" {
			c.finding = t.Error
		}
		return c
	}
	if t.Now.Recorded {
		c.busy = format.Percent(t.Now.Busy)
	}
	if t.Now.Part != "" {
		c.part, c.share = t.Now.Part, format.Percent(t.Now.PartShare)
	} else if t.State == api.Waiting {
		c.part = "waits for CUDA"
	}
	if t.Now.Rate > 0 {
		c.rate = strings.TrimSuffix(format.Rate(t.Now.Rate), "/s")
	}
	if t.serves() {
		c.requests = strings.TrimSuffix(format.Rate(t.Now.Requests), "/s")
	}
	if t.Now.TTFT > 0 {
		c.first = format.Span(t.Now.TTFT)
	}
	c.finding = t.Now.Finding
	return c
}

// Lines above and below the body of a view.
const (
	headLines = 3 // title, empty, header of the table
	footLines = 1
	noteLines = 1 // under the list: what to change first in the chosen target
)

// wide is the terminal width from which the list has a column for the suggested change.
const wide = 110

// body returns the height of the body.
func (m *topModel) body() int { return max(1, m.height-headLines-noteLines-footLines) }

// View renders the current view.
func (m *topModel) View() tea.View {
	lines := m.lines()
	for len(lines) < m.height-footLines {
		lines = append(lines, "")
	}
	lines = append(lines[:m.height-footLines], m.foot())
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	v.WindowTitle = "inferscope top"
	return v
}

func (m *topModel) lines() []string {
	out := []string{m.paint("1", m.cut(m.title())), ""}
	switch {
	case m.mode == helpMode:
		return append(out, m.scroll(m.help())...)
	case m.last == nil:
		return append(out, "looking at the targets ...")
	case m.open != 0:
		return append(out, m.scroll(m.detail())...)
	}
	return append(out, m.list()...)
}

// title is the first line: the state of the daemon and its overhead.
func (m *topModel) title() string {
	if m.last == nil {
		return "inferscope top"
	}
	cpu := 0.0
	if m.last.Uptime > 0 {
		cpu = m.last.Daemon.CPU / m.last.Uptime
	}
	s := fmt.Sprintf("inferscope top: %s, daemon %s of a core, %s",
		format.Plural(len(m.last.Targets), "target", "targets"), format.Percent(cpu),
		memory(m.last.Daemon.RSS))
	if m.filter != "" || m.mode == filterMode {
		s += "; filter: " + m.filter
	}
	if m.paused {
		s += "; PAUSED (Z)"
	}
	return s
}

func (m *topModel) list() []string {
	rows := m.rows()
	serving := slices.ContainsFunc(rows, func(t topTarget) bool { return t.serves() })
	head := m.row(
		cells{
			pid:      "PID",
			name:     "PROCESS",
			busy:     "GPU%",
			part:     "MOST OF THE REST",
			rate:     "ITER/S",
			requests: "REQ/S",
			first:    "TTFT",
			cost:     "COST",
			finding:  "CHANGE FIRST",
		},
		serving,
	)
	out := []string{m.paint("7", head)}
	if len(rows) == 0 {
		text := "no target"
		if m.filter != "" {
			text = "no target fits the filter"
		}
		return append(out, m.cut(text+"; inferscope ps lists what could be watched"))
	}
	at := max(0, slices.IndexFunc(rows, func(t topTarget) bool { return t.PID == m.chosen }))
	first := max(0, min(at-m.body()/2, len(rows)-m.body()))
	for i := first; i < min(len(rows), first+m.body()); i++ {
		line := m.row(rows[i].cells(), serving)
		if i == at {
			line = m.paint("7", line)
		} else if n := rows[i].Now; n != nil && n.Recorded && n.Busy < 0.5 {
			line = m.paint("33", line)
		}
		out = append(out, line)
	}
	for len(out) < m.body()+1 {
		out = append(out, "")
	}
	note := ""
	if finding := rows[at].cells().finding; finding != "" && m.width < wide {
		note = fmt.Sprintf("%d: %s", rows[at].PID, finding)
	}
	return append(out, m.cut(note))
}

// roomy is the terminal width from which the list shows iterations beside requests.
const roomy = 100

// row formats a row for the width of the terminal. The columns of requests exist if any target serves requests.
func (m *topModel) row(c cells, serving bool) string {
	width := 20
	if serving && m.width < roomy {
		width = 12
	}
	part := c.part
	if c.share != "" && c.share != "-" {
		part = document.Pad(format.Shorten(part, width), width, true) + document.Pad(c.share, 7, false)
	}
	line := fmt.Sprintf("%7s  %s %6s  %s",
		c.pid, document.Pad(format.Shorten(c.name, 16), 16, true), c.busy,
		document.Pad(format.Shorten(part, width+7), width+7, true))
	if !serving || m.width >= roomy {
		line += fmt.Sprintf(" %7s", c.rate)
	}
	if serving {
		line += fmt.Sprintf(" %6s ", c.requests) + document.Pad(c.first, 8, false)
	}
	line += fmt.Sprintf(" %6s", c.cost)
	if m.width >= wide {
		line += "  " + c.finding
	}
	line = m.cut(line)
	return line + strings.Repeat(" ", max(0, m.width-len([]rune(line))))
}

// detail returns the lines of the detail view.
func (m *topModel) detail() []string {
	if m.last.detail == nil {
		return []string{fmt.Sprintf("looking at the last minute of pid %d ...", m.open)}
	}
	var b bytes.Buffer
	if err := document.Text(&b, m.last.detail, document.Style{Width: m.width, Color: m.color}); err != nil {
		return []string{err.Error()}
	}
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// topKeys is the help view, for 80 columns.
const topKeys = `GPU%      share of the time seen in which a GPU ran something
MOST OF   where most of the other time goes: what the GPU waits for, or copies
ITER/S    iterations a second, as the report finds them
REQ/S     HTTP requests a second, and TTFT: the median time to the first token
COST      what watching costs the target, of its time

Up Down PgUp PgDn Home End   move, as do k and j
Enter                        the last minute of a target: what limits it, what
                             to change, threads, kernels
Esc                          back; in the list: no filter
F4 or \ or /                 show what has this in its pid, name or command
F6 or > and <                order: idle GPU, iterations, cost, pid, name, requests
I                            turn the order round
Z                            pause
q or F10                     quit

Each line is of the last 10 s. Where there are many targets, they are looked
at in turn, so that looking takes at most a tenth of a CPU.`

func (m *topModel) help() []string { return strings.Split(topKeys, "\n") }

// scroll returns the visible lines.
func (m *topModel) scroll(lines []string) []string {
	room := m.height - footLines - 2
	m.first = max(0, min(m.first, len(lines)-room))
	out := slices.Clone(lines[m.first:min(len(lines), m.first+room)])
	for i, l := range out {
		if !strings.Contains(l, "\x1b") { // what has colours was wrapped before
			out[i] = m.cut(l)
		}
	}
	return out
}

// foot is the line of keys.
func (m *topModel) foot() string {
	switch m.mode {
	case detailMode:
		return m.paint(
			"7",
			m.cut(fmt.Sprintf("pid %d, the last minute   Esc back  PgUp PgDn scroll  Z pause  F10 quit", m.open)),
		)
	case filterMode:
		return m.paint("7", m.cut("type a filter: pid, name, command or pod   Enter done  Esc clear"))
	case helpMode:
		return m.paint("7", m.cut("any key goes back"))
	}
	return m.paint("7", m.cut(
		fmt.Sprintf("Enter open  F4 filter  F6 order: %s  I invert  Z pause  F1 help  F10 quit",
			orderNames[m.order])))
}

func (m *topModel) cut(s string) string {
	if r := []rune(s); len(r) > m.width {
		return string(r[:m.width-1]) + "…"
	}
	return s
}

func (m *topModel) paint(code, s string) string {
	if !m.color && code != "7" { // what is chosen must be seen without colours, too
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
