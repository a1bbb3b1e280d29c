package main

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// openedReport is where report --open writes where no -o says so.
const openedReport = "report.html"

// page completes the flags of a report that is a page: --open is about nothing else, and a terminal cannot show one.
func (f *reportFlags) page(format string, stdout io.Writer) error {
	if !f.open {
		if _, ok := terminal(stdout); ok && format == formatHTML && (f.output == "" || f.output == "-") {
			return clierror.New(
				clierror.Usage,
				"write it to a file with -o report.html, or show it with --open",
				fmt.Errorf("an HTML report is for a browser, not for a terminal"),
			)
		}
		return nil
	}
	if format != formatHTML {
		return clierror.New(
			clierror.Usage,
			"leave out --open, or choose --format html",
			fmt.Errorf("--open shows HTML reports, not %s", format),
		)
	}
	switch f.output {
	case "":
		f.output = openedReport
	case "-":
		return clierror.New(clierror.Usage, "name a file with -o", fmt.Errorf("--open cannot show standard output"))
	}
	return nil
}

// browse asks the desktop to show a file. Where there is no desktop the report is there all the same, so that this
// is said and is no error.
func (g *global) browse(path string) error {
	whole, err := filepath.Abs(path)
	if err != nil {
		whole = path
	}
	opener, err := exec.LookPath("xdg-open")
	if err == nil {
		// It ends at once, and the browser outlives us: no context may end it.
		err = exec.Command(opener, whole).Start() //nolint:noctx // see above
	}
	if err != nil {
		fmt.Fprintf(
			g.stderr,
			"inferscope: no browser could be started (%v): open %s by hand\n",
			err,
			format.Clean(whole),
		)
	}
	return nil
}
