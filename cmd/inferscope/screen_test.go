package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/report/document"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// openTerminal returns the two sides of a new pseudo-terminal of 97 columns: the
// person's and the program's.
func openTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs a pseudo-terminal:", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 97})
	}
	if err != nil {
		t.Skip("needs a pseudo-terminal:", err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs a pseudo-terminal:", err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

func TestStyleOfATerminal(t *testing.T) {
	_, tty := openTerminal(t)
	tests := []struct {
		env  config.Environment
		want document.Style
	}{
		{nil, document.Style{Width: 97, Color: true}},
		{config.Environment{"NO_COLOR=1"}, document.Style{Width: 97}},
		{config.Environment{"NO_COLOR="}, document.Style{Width: 97, Color: true}},
		{config.Environment{"TERM=dumb"}, document.Style{Width: 97}},
		{config.Environment{"COLUMNS=60"}, document.Style{Width: 60, Color: true}},
		{config.Environment{"COLUMNS=wide"}, document.Style{Width: 97, Color: true}},
	}
	for _, tt := range tests {
		if got := styleOf(tty, tt.env); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.env, got, tt.want)
		}
		if got := styleOf(&output{Writer: tty}, tt.env); got != tt.want {
			t.Errorf("%v, as a report's output: %+v, want %+v", tt.env, got, tt.want)
		}
	}
}

func TestStyleOfAnythingElse(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	must.NoError(t, err)
	defer file.Close()
	if got := styleOf(file, nil); got != (document.Style{}) {
		t.Errorf("a file has %+v", got)
	}
	if got := styleOf(&bytes.Buffer{}, config.Environment{"COLUMNS=60"}); got != (document.Style{}) {
		t.Errorf("a pipe has %+v", got)
	}
}

// TestProgress holds that a person sees how far a window has passed, and that the line is gone afterwards.
func TestProgress(t *testing.T) {
	got := shown(t, 0, recordingOf(1234, 10*time.Second))
	if !strings.Contains(got, "recording pid 1234: 0 of 10 s") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("the terminal got %q", got)
	}
}

// shown is what a terminal got of a progress that was ended at once.
func shown(t *testing.T, after time.Duration, s step) string {
	t.Helper()
	person, tty := openTerminal(t)
	g := &global{process: process{stderr: tty}}
	g.progress(t.Context(), after, s)()
	var got string
	for chunk := make([]byte, 4096); strings.Count(got, "\r\x1b[K") < 2; { // a terminal hands over what it has, in parts too
		n, err := person.Read(chunk)
		if err != nil {
			t.Fatalf("%v, after %q", err, got)
		}
		got += string(chunk[:n])
	}
	return got
}

// TestNoProgressOfWhatIsQuick holds that nothing flickers where something ends before anybody asks.
func TestNoProgressOfWhatIsQuick(t *testing.T) {
	person, tty := openTerminal(t)
	g := &global{process: process{stderr: tty}}
	g.progress(t.Context(), time.Hour, thinking)()
	_, _ = tty.WriteString("end\n")
	chunk := make([]byte, 4096)
	if n, err := person.Read(chunk); err != nil || strings.TrimSpace(string(chunk[:n])) != "end" {
		t.Errorf("the terminal got %q, %v", chunk[:n], err)
	}
}

func TestWhatProgressSays(t *testing.T) {
	for passed, want := range map[time.Duration]string{
		3 * time.Second: "recording pid 7: 3 of 10 s", 12 * time.Second: "fetching what was recorded of pid 7: 2 s",
	} {
		if got := recordingOf(7, 10*time.Second)(passed); got != want {
			t.Errorf("after %s: %q, want %q", passed, got, want)
		}
	}
	if untilShown(time.Minute) != 0 || untilShown(0) != progressAfter || untilShown(time.Millisecond) != progressAfter {
		t.Error("a line comes at once only where a wait is known to be long")
	}
}

func TestNoProgressElsewhere(t *testing.T) {
	var stderr bytes.Buffer
	g := &global{process: process{stderr: &stderr}}
	g.progress(t.Context(), 0, thinking)()
	if stderr.Len() > 0 {
		t.Errorf("a pipe got %q", &stderr)
	}
}

func TestASCIIOnly(t *testing.T) {
	_, tty := openTerminal(t)
	tests := []struct {
		env  config.Environment
		want bool
	}{
		{nil, true},
		{config.Environment{"LANG=C"}, true},
		{config.Environment{"LANG=de_DE.ISO-8859-1"}, true},
		{config.Environment{"LANG=C.UTF-8"}, false},
		{config.Environment{"LANG=en_US.utf8"}, false},
		{config.Environment{"LANG=en_US.UTF-8", "LC_ALL=C"}, true},
		{config.Environment{"LANG=C", "LC_CTYPE=C.UTF-8"}, false},
	}
	for _, tt := range tests {
		if got := asciiOnly(tty, tt.env); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.env, got, tt.want)
		}
	}
	if asciiOnly(&bytes.Buffer{}, nil) {
		t.Error("a file takes everything")
	}
}
