package main

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/report/document"
)

// styleOf returns the style of text for w: the width of a terminal, and colour unless NO_COLOR (no-color.org) or a
// terminal without colours is set; plain for anything else.
func styleOf(w io.Writer, env config.Environment) document.Style {
	width, ok := terminal(w)
	if !ok {
		return document.Style{}
	}
	if v, ok := env.Get("COLUMNS"); ok {
		if n, err := strconv.Atoi(v); err == nil && n > 0 {
			width = n
		}
	}
	noColor, _ := env.Get("NO_COLOR")
	term, _ := env.Get("TERM")
	return document.Style{Width: width, Color: noColor == "" && term != "dumb"}
}

// terminal returns the width of w in columns and whether w is a terminal.
func terminal(w io.Writer) (columns int, ok bool) {
	file, ok := w.(*os.File)
	if o, is := w.(*output); is {
		file, ok = o.Writer.(*os.File)
	}
	if !ok {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}

// asciiOnly reports whether w is a terminal whose locale (locale(7)) supports only ASCII.
func asciiOnly(w io.Writer, env config.Environment) bool {
	if _, ok := terminal(w); !ok {
		return false
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v, ok := env.Get(name); ok && v != "" {
			v = strings.ToLower(strings.ReplaceAll(v, "-", ""))
			return !strings.HasSuffix(v, "utf8")
		}
	}
	return true // the C locale
}
