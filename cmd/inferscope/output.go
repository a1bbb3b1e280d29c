package main

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/outfile"
)

// goal is where a report is to go, found before it is made: standard output, or a place in a directory that is held
// from then on.
type goal struct {
	path  string         // as it was asked for; "" for standard output
	place *outfile.Place // nil for standard output
}

// openGoal makes sure that there is a place for a report before it exists. It is opened and written with the rights of
// a user; nil are those of this process.
func openGoal(path string, as *syscall.Credential) (*goal, error) {
	if path == "" || path == "-" {
		return &goal{}, nil
	}
	place, err := outfile.Open(path, as)
	if err != nil {
		return nil, outputFault(err)
	}
	return &goal{path: path, place: place}, nil
}

// begin creates the file, under a temporary name.
func (t *goal) begin(stdout io.Writer) (*output, error) {
	if t.place == nil {
		return &output{Writer: stdout}, nil
	}
	file, err := t.place.Create()
	if err != nil {
		return nil, outputFault(err)
	}
	return &output{Writer: file, path: t.path, file: file}, nil
}

func (t *goal) close() {
	if t != nil && t.place != nil {
		_ = t.place.Close()
	}
}

// output is what a report is written to: standard output, or a file that is there whole or not at all.
type output struct {
	io.Writer
	path string        // as it was asked for; "" for standard output
	file *outfile.File // nil for standard output
	goal *goal         // to be closed with it; nil: somebody else does
}

// openOutput is openGoal for a report that is made at once. The file appears at path when keep is called.
func openOutput(path string, stdout io.Writer) (*output, error) {
	to, err := openGoal(path, nil)
	if err != nil {
		return nil, err
	}
	out, err := to.begin(stdout)
	if err != nil {
		to.close()
		return nil, err
	}
	out.goal = to
	return out, nil
}

func outputFault(err error) error {
	hint := "choose a file in a directory that exists and that you may write"
	if errors.Is(err, outfile.ErrLink) {
		hint = "name the directory that the link leads to, if you trust whoever made it"
	}
	return clierror.New(clierror.General, hint, fmt.Errorf("writing the output: %w", err))
}

// keep puts the file into its place.
func (o *output) keep() error {
	if o.file == nil {
		return nil
	}
	if err := o.file.Commit(); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// discard removes what was not kept. After keep it lets go of the place only.
func (o *output) discard() {
	if o.file != nil {
		o.file.Discard()
	}
	o.goal.close()
}
