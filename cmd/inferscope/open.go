package main

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// openedReport is the file that report --open writes without -o.
const openedReport = "report.html"

// checkHTML checks the flags for HTML reports, and sets the output file of --open.
func (f *reportFlags) checkHTML(format string, stdout io.Writer) error {
	if !f.open {
		if _, ok := terminal(stdout); ok && format == formatHTML && (f.output == "" || f.output == "-") {
			return clierror.New(clierror.Usage,
				"write it to a file with -o report.html, or show it with --open",
				fmt.Errorf("an HTML report is for a browser, not for a terminal"))
		}
		return nil
	}
	if format != formatHTML {
		return clierror.New(clierror.Usage, "leave out --open, or choose --format html",
			fmt.Errorf("--open shows HTML reports, not %s", format))
	}
	switch f.output {
	case "":
		f.output = openedReport
	case "-":
		return clierror.New(clierror.Usage, "name a file with -o", fmt.Errorf("--open cannot show standard output"))
	}
	return nil
}

// openInBrowser shows a file in the default browser. Without a desktop the report has been written all the same: a
// message says where it is.
func (g *global) openInBrowser(path string) error {
	whole, err := filepath.Abs(path)
	if err != nil {
		whole = path
	}
	opener, err := exec.LookPath("xdg-open")
	if err == nil {
		// xdg-open ends at once and the browser outlives this process, so no context may end it.
		err = exec.Command(opener, whole).Start() //nolint:noctx // see above
	}
	if err != nil {
		fmt.Fprintf(g.stderr, "inferscope: no browser could be started (%v): open %s by hand\n",
			err, format.Clean(whole))
	}
	return nil
}
