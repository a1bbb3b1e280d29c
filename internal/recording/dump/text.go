package dump

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// TextOptions say how a text is written.
type TextOptions struct {
	All   bool // the interpreter's own frames too
	Color bool
}

// Text writes d as `py-spy dump` would, with what that does not know: why a thread
// waits, and native frames where they belong.
func Text(w io.Writer, d *Dump, o TextOptions) error {
	t := &writer{w: bufio.NewWriter(w), options: o}
	for i := range d.Processes {
		if i > 0 {
			t.line("")
		}
		t.process(&d.Processes[i])
	}
	if d.Withheld > 0 {
		t.line("")
		t.line(fmt.Sprintf("%d processes of other users are left out: ask as root", d.Withheld))
	}
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("write the dump: %w", err)
	}
	return nil
}

// writer writes lines; bufio keeps the first error for Flush.
type writer struct {
	w       *bufio.Writer
	options TextOptions
}

func (t *writer) line(s string) { _, _ = t.w.WriteString(s + "\n") }

// ANSI colours; see ECMA-48, SGR.
const (
	bold  = "\x1b[1m"
	faint = "\x1b[2m"
	green = "\x1b[32m"
	reset = "\x1b[0m"
)

func (t *writer) paint(code, s string) string {
	if !t.options.Color {
		return s
	}
	return code + s + reset
}

func (t *writer) process(p *Process) {
	own := ""
	if p.NSPID != 0 && p.NSPID != p.PID {
		own = fmt.Sprintf(" (%d in its own namespace)", p.NSPID)
	}
	command := p.Cmdline
	if command == "" {
		command = p.Comm
	}
	t.line(t.paint(bold, fmt.Sprintf("Process %d%s: %s", p.PID, own, format.Clean(command))))
	if p.Runtime != "" {
		t.line(fmt.Sprintf("%s (%s)", format.Clean(p.Runtime), format.Clean(p.Path)))
	}
	for _, note := range p.Notes {
		t.line("Note: " + format.Clean(note))
	}
	for _, g := range t.groups(p.Threads) {
		t.line("")
		t.group(g)
	}
}

// group writes threads that do the same in the same place, once.
func (t *writer) group(same []*Thread) {
	th := same[0]
	state := th.label()
	if th.State == Active {
		state = t.paint(green, state)
	}
	if len(same) == 1 {
		t.line(fmt.Sprintf("Thread %d (%s): %s", th.TID, state, strconv.Quote(format.Clean(th.Name))))
	} else {
		t.line(fmt.Sprintf("%d threads (%s): %s", len(same), state, members(same)))
	}
	t.stack(th)
}

// maxMembers bounds how many threads of a group are named.
const maxMembers = 8

// members names threads with their ids: "worker" 12, 13; "loader" 14.
func members(same []*Thread) string {
	ids := map[string][]string{}
	var names []string
	for _, th := range same[:min(len(same), maxMembers)] {
		name := strconv.Quote(format.Clean(th.Name))
		if ids[name] == nil {
			names = append(names, name)
		}
		ids[name] = append(ids[name], strconv.FormatUint(uint64(th.TID), 10))
	}
	for i, name := range names {
		names[i] = name + " " + strings.Join(ids[name], ", ")
	}
	text := strings.Join(names, "; ")
	if more := len(same) - maxMembers; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// groups puts threads together that a text shows alike, in the order of the first of each.
func (t *writer) groups(threads []Thread) [][]*Thread {
	at := map[string]int{}
	var out [][]*Thread
	for i := range threads {
		th := &threads[i]
		key := th.label()
		var b bytes.Buffer
		whole := &writer{w: bufio.NewWriter(&b), options: TextOptions{All: true}}
		whole.stack(th)
		_ = whole.w.Flush() // into memory
		key += "\n" + b.String()
		n, ok := at[key]
		if !ok {
			n = len(out)
			at[key] = n
			out = append(out, nil)
		}
		out[n] = append(out[n], th)
	}
	return out
}

// stack writes the frames of a thread, and why some may be missing.
func (t *writer) stack(th *Thread) {
	shown := 0
	for i := range th.Frames {
		f := &th.Frames[i]
		if f.Internal && !t.options.All {
			continue
		}
		shown++
		text := "    " + f.Place()
		if f.Kind != recording.PythonFrame {
			text = t.paint(faint, text)
		}
		t.line(text)
	}
	switch {
	case shown == 0 && th.Cut != "":
		t.line("    (no frames: " + format.Clean(th.Cut) + ")")
	case shown == 0:
		t.line("    (no frames)")
	case th.Cut != "":
		t.line("    (native frames may be missing: " + format.Clean(th.Cut) + ")")
	}
	if th.Torn {
		t.line("    (it ran while it was read: frames of several moments may be mixed)")
	}
}

// label describes in a few words what a thread does.
func (th *Thread) label() string {
	s := format.Clean(string(th.State)) // a daemon's word, but who says that it is one
	switch {
	case th.State == Runnable:
		return "active, waiting for a CPU"
	case th.State != Idle && th.Activity == "":
		return s
	case th.State != Idle:
		return s + ", " + format.Clean(th.Activity)
	}
	if th.Activity != "" {
		s += ", " + format.Clean(th.Activity)
	}
	if th.Doing != "" {
		s += ": " + format.Clean(th.Doing)
	}
	return s
}

// Place writes a frame: "function (file:line)" of Python, "function (library)" of native code.
func (f *Frame) Place() string {
	name := format.Clean(f.Name)
	if f.Kind == recording.PythonFrame {
		return fmt.Sprintf("%s (%s:%d)", name, format.Clean(f.File), f.Line)
	}
	if f.File == "" {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, format.Clean(f.File))
}
