package main

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/outfile"
)

// goal is the destination of a report, opened before the report is made: standard output, or a name in a directory that
// stays open.
type goal struct {
	path  string         // as it was asked for; "" for standard output
	place *outfile.Place // nil for standard output
}

// openGoal checks that a report can be written before it is made. Files are opened and written with the rights of a
// user; nil: those of this process.
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

// output is a destination that is being written: standard output, or a file that appears only when complete.
type output struct {
	io.Writer
	path string        // as it was asked for; "" for standard output
	file *outfile.File // nil for standard output
	goal *goal         // to be closed with it; nil: somebody else does
}

// openOutput opens a destination and begins the file at once. The file appears at path when keep is called.
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

// keep moves the file to its final name.
func (o *output) keep() error {
	if o.file == nil {
		return nil
	}
	if err := o.file.Commit(); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// discard removes the file unless keep was called, and closes the directory.
func (o *output) discard() {
	if o.file != nil {
		o.file.Discard()
	}
	o.goal.close()
}
