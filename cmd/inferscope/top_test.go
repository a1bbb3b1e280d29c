package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// driven is a model whose looks are counted and answered by hand.
func driven(t *testing.T, targets int) (m *topModel, looks *int) {
	t.Helper()
	m, looks = newTopModel(false), new(int)
	m.look = func(*topModel) tea.Cmd { *looks++; return nil }
	m.Init()
	m.Update(some(m, targets))
	return m, looks
}

// some is a snapshot of so many targets, each busier than the one before.
func some(m *topModel, targets int) *snapshot {
	s := &snapshot{Uptime: 10, number: m.asked}
	for i := range targets {
		cost := float64(i) / 100
		s.Targets = append(s.Targets, topTarget{
			PID:     uint32(100 + i),
			Comm:    fmt.Sprintf("a-program-with-a-long-name-%d", i),
			Cmdline: "python infer.py",
			State:   api.Watching,
			Cost:    &cost,
			Now: &report.Glance{
				Recorded:  true,
				Busy:      float64(i) / float64(targets),
				Part:      "CPU preprocessing of requests",
				PartShare: 0.5,
				Rate:      12345.678,
				Finding:   strings.Repeat("a long finding ", 20),
			},
		})
	}
	return s
}

func press(m *topModel, keys ...string) {
	codes := map[string]rune{
		"up": tea.KeyUp, "down": tea.KeyDown, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp,
		"home": tea.KeyHome, "end": tea.KeyEnd, "enter": tea.KeyEnter,
		"esc": tea.KeyEscape, "f1": tea.KeyF1, "f4": tea.KeyF4,
		"f6": tea.KeyF6, "f10": tea.KeyF10, "backspace": tea.KeyBackspace,
	}
	for _, k := range keys {
		if code, ok := codes[k]; ok {
			m.Update(tea.KeyPressMsg{Code: code})
			continue
		}
		for _, r := range k {
			m.Update(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// screenOf is the screen without colours; it must fit.
func screenOf(t *testing.T, m *topModel) string {
	t.Helper()
	text := escapes.ReplaceAllString(m.View().Content, "")
	lines := strings.Split(text, "\n")
	if len(lines) != m.height {
		t.Errorf("%d lines on a screen of %d:\n%s", len(lines), m.height, text)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > m.width {
			t.Errorf("%d columns on a screen of %d: %s", n, m.width, l)
		}
	}
	return text
}

func TestTopMoves(t *testing.T) {
	m, _ := driven(t, 40)
	for _, step := range []struct {
		keys   string
		chosen uint32
	}{{"down", 101}, {"down down", 103}, {"up", 102}, {"end", 139}, {"pgup", 121}, {"home", 100}, {"j j k", 101}} {
		press(m, strings.Fields(step.keys)...)
		if m.chosen != step.chosen {
			t.Errorf("%s leads to %d, want %d", step.keys, m.chosen, step.chosen)
		}
		if text := screenOf(t, m); !strings.Contains(text, fmt.Sprintf("%d  a-program", m.chosen)) {
			t.Errorf("after %s the chosen line is not on the screen:\n%s", step.keys, text)
		}
	}
	press(m, "I", "home")
	if m.chosen != 139 {
		t.Errorf("turned round, the first is %d", m.chosen)
	}
	press(m, "I", "f6", "f6", "home") // cost
	if m.chosen != 139 || !strings.Contains(screenOf(t, m), "order: cost") {
		t.Errorf("by cost the first is %d:\n%s", m.chosen, screenOf(t, m))
	}
}

func TestTopFilters(t *testing.T) {
	m, _ := driven(t, 12)
	press(m, "f4", "name-11x", "backspace", "enter")
	if text := screenOf(t, m); !strings.Contains(text, "111  a-program") || strings.Contains(text, "110  a-program") ||
		!strings.Contains(text, "filter: name-11") {
		t.Errorf("filtered it shows\n%s", text)
	}
	press(m, "f4", "zzz", "enter")
	if text := screenOf(t, m); !strings.Contains(text, "no target fits the filter") {
		t.Errorf("a filter that nothing fits shows\n%s", text)
	}
	press(m, "enter") // there is nothing to open
	press(m, "esc")
	if rows := m.rows(); len(rows) != 12 || m.open != 0 {
		t.Errorf("without a filter there are %d, and %d is open", len(rows), m.open)
	}
}

// TestTopOpensATarget: the second screen is fetched at once, and what was asked for before does not count any more.
func TestTopOpensATarget(t *testing.T) {
	m, looks := driven(t, 3)
	before, late := *looks, some(m, 1)
	press(m, "down", "enter")
	if m.open != 101 || *looks != before+1 || !m.urgent ||
		!strings.Contains(screenOf(t, m), "the last minute of pid 101") {
		t.Fatalf("%d is open after %d looks:\n%s", m.open, *looks-before, screenOf(t, m))
	}
	m.Update(late)
	if len(m.last.Targets) != 3 || *looks != before+1 {
		t.Error("an answer to an old question was taken, or asked anew")
	}
	s := some(m, 3)
	s.show(report.New(newFakeDaemon().rec), nil)
	m.Update(s)
	if text := screenOf(t, m); !strings.Contains(text, "Not enough evidence") || m.urgent {
		t.Errorf("the second screen is\n%s", text)
	}
	press(m, "pgdown", "pgdown", "end")
	screenOf(t, m)
	press(m, "f1")
	if text := screenOf(t, m); !strings.Contains(text, "GPU%") {
		t.Errorf("help is\n%s", text)
	}
	press(m, "x", "q")
	if m.open != 0 || !strings.Contains(screenOf(t, m), "PROCESS") {
		t.Errorf("it does not go back:\n%s", screenOf(t, m))
	}
}

func TestTopPauses(t *testing.T) {
	m, looks := driven(t, 2)
	press(m, "Z")
	before := *looks
	m.Update(some(m, 5))
	if len(m.last.Targets) != 2 || *looks != before+1 || !strings.Contains(screenOf(t, m), "PAUSED") {
		t.Errorf("while it pauses it shows\n%s", screenOf(t, m))
	}
	press(m, "Z")
	m.Update(some(m, 5))
	if len(m.last.Targets) != 5 {
		t.Error("it does not go on")
	}
}

func TestTopFitsAnyScreen(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {20, 5}, {200, 60}, {1, 1}} {
		for _, targets := range []int{0, 1, 100} {
			m, _ := driven(t, targets)
			m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			for _, keys := range []string{"end", "enter", "f1", "x", "esc"} {
				press(m, keys)
				screenOf(t, m)
			}
		}
	}
}

func TestTopEndsWithTheDaemon(t *testing.T) {
	m, _ := driven(t, 1)
	_, cmd := m.Update(&snapshot{err: io.ErrUnexpectedEOF, number: m.asked})
	if cmd == nil || m.failed == nil {
		t.Error("it goes on without a daemon")
	}
}

func TestTopOnce(t *testing.T) {
	d := newFakeDaemon()
	d.targets = append(d.targets, api.Target{PID: 9, Comm: "old", State: api.Exited})
	socket := serve(t, d)
	r := at(t, socket, "top", "--once")
	want(t, r, clierror.OK)
	if !strings.Contains(r.stdout, "1234  python") || strings.Contains(r.stdout, "old") {
		t.Errorf("it is\n%s", r.stdout)
	}
	var s struct {
		Kind    string
		Targets []struct {
			PID uint32
			Now *struct{ Verdict string }
		}
	}
	if err := json.Unmarshal([]byte(at(t, socket, "top", "--once", "--json").stdout), &s); err != nil ||
		s.Kind != "inferscope.top" ||
		len(s.Targets) != 1 ||
		s.Targets[0].Now.Verdict != "not-enough-evidence" {
		t.Errorf("--json gives %+v, %v", s, err)
	}
	want(t, at(t, socket, "top"), clierror.Usage, "--once")
	want(t, at(t, socket, "top", "--json"), clierror.Usage, "--once")
	want(t, at(t, socket, "top", "--every", "1ms", "--once"), clierror.Usage, "--every")
	want(t, at(t, socketPath(t), "top", "--once"), clierror.NoDaemon)
}

// TestTopLooksInTurn: each of several targets gets its look, and what was seen of the others stays.
func TestTopLooksInTurn(t *testing.T) {
	client, err := api.Dial(serve(t, newFakeDaemon()))
	must.NoError(t, err)
	defer client.Close()
	w := &looker{client: client}
	s := w.next(t.Context(), ask{number: 3})
	if s.err != nil || s.number != 3 || len(s.Targets) != 1 || s.Targets[0].Now == nil {
		t.Fatalf("it is %+v", s)
	}
	s.Targets[0].Now.Finding = "seen before"
	kept := w.targets(t.Context())
	if kept.keep(s); kept.Targets[0].Now.Finding != "seen before" {
		t.Error("what was seen before is forgotten")
	}
	opened := w.next(t.Context(), ask{open: 1234, wait: time.Nanosecond})
	if opened.detail == nil {
		t.Error("there is no second screen")
	}
	if gone := w.next(t.Context(), ask{open: 77}); gone.detail == nil {
		t.Error("of a target that is gone it says nothing")
	}
}

// TestTopShowsRequests: the list has columns of requests where a target serves any, on narrow and wide screens, and the
// numbers are those of the report.
func TestTopShowsRequests(t *testing.T) {
	m, _ := driven(t, 3)
	if text := screenOf(t, m); strings.Contains(text, "REQ/S") || !strings.Contains(text, "ITER/S") {
		t.Errorf("without requests the list is\n%s", text)
	}
	s := some(m, 3)
	rec := newFakeDaemon().rec
	span := rec.Meta.To - rec.Meta.From
	for i := range uint64(4) {
		at := rec.Meta.From + i*span/8
		rec.Meta.Requests = append(rec.Meta.Requests, recording.Request{
			Number: i, PID: rec.Meta.Target, Received: at, Asked: at, FirstToken: at + 123e3, LastToken: at + 200e3,
			End: at + 200e3, Method: "POST", Route: "/v1/completions", Status: 200, Outcome: "complete", Streamed: true,
		})
	}
	now := report.Look(report.New(rec))
	s.Targets[1].Now = &now
	want := strings.TrimSuffix(format.Rate(4/(float64(span)/1e9)), "/s")
	m.Update(s)
	for width, iterations := range map[int]bool{80: false, 99: false, 100: true, 140: true} {
		m.Update(tea.WindowSizeMsg{Width: width, Height: 24})
		text := screenOf(t, m)
		lines := strings.Split(text, "\n")
		if !strings.Contains(text, "REQ/S") || !strings.Contains(text, "TTFT") || !strings.Contains(text, "COST") ||
			strings.Contains(text, "ITER/S") != iterations {
			t.Errorf("%d columns:\n%s", width, text)
		}
		i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "101  a-program") })
		if i < 0 || !strings.Contains(lines[i], " "+want+" ") || !strings.Contains(lines[i], "123 µs") {
			t.Errorf("%d columns lack %s and 123 µs:\n%s", width, want, text)
		}
	}
	press(m, "f6", "f6", "f6", "f6", "f6", "home")
	if m.chosen != 101 || !strings.Contains(screenOf(t, m), "order: requests") {
		t.Errorf("by requests the first is %d:\n%s", m.chosen, screenOf(t, m))
	}
	if table := topTable(s.Targets); len(table.Rows[1]) != len(table.Columns) ||
		!slices.Contains(table.Rows[1], "123 µs") {
		t.Errorf("the table of --once is %v", table.Rows)
	}
}
