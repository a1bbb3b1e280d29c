package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/inferscope/inferscope/internal/fault"
)

// output is where a report goes: standard output, or a file that is there whole or not at all.
type output struct {
	io.Writer
	path string   // as it was asked for; "" for standard output
	goal string   // path with its symbolic links followed; "" where there is nothing to rename to
	file *os.File // nil for standard output
}

// openOutput makes sure that there is a place for a report before it exists. The
// file appears at path when keep is called. What is there and is not a regular
// file (a pipe, /dev/stderr) is written as it is: renaming over it would replace it.
func openOutput(path string, stdout io.Writer) (*output, error) {
	if path == "" || path == "-" {
		return &output{Writer: stdout}, nil
	}
	goal, err := resolve(path)
	if err != nil {
		return nil, outputFault(err)
	}
	if info, err := os.Stat(goal); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(goal, os.O_WRONLY, 0)
		if err != nil {
			return nil, outputFault(err)
		}
		return &output{Writer: file, path: path, file: file}, nil
	}
	// The umask of the user decides who may read it, as with any new file.
	temp := fmt.Sprintf("%s.%d.tmp", goal, os.Getpid())
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, outputFault(err)
	}
	return &output{Writer: file, path: path, goal: goal, file: file}, nil
}

// resolve follows symbolic links, so that a link to a report stays one. A file
// that does not exist yet is where its directory is.
func resolve(path string) (string, error) {
	goal, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		return filepath.Join(dir, filepath.Base(path)), err
	}
	return goal, err
}

func outputFault(err error) error {
	return fault.New(fault.General, "choose a file in a directory that exists and that you may write", fmt.Errorf("writing the output: %w", err))
}

// keep puts the file into its place.
func (o *output) keep() error {
	if o.file == nil {
		return nil
	}
	// Errors of the disk show up here at the latest, while the old report is still there.
	var err error
	if o.goal != "" {
		err = o.file.Sync()
	}
	if err := errors.Join(err, o.file.Close()); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	if o.goal == "" {
		return nil
	}
	if err := os.Rename(o.file.Name(), o.goal); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	o.goal = ""
	return nil
}

// discard removes what was not kept. It does nothing after keep.
func (o *output) discard() {
	if o.file == nil || o.goal == "" {
		return
	}
	_ = o.file.Close()
	_ = os.Remove(o.file.Name())
}
