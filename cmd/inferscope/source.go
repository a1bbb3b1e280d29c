package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/inferscope/inferscope/internal/fault"
	"github.com/inferscope/inferscope/internal/importer"
	"github.com/inferscope/inferscope/internal/isc"
	"github.com/inferscope/inferscope/internal/record"
)

// The first bytes of files that can be a recording.
const (
	streamMagic = "ISCOPE\r\n"
	zipMagic    = "PK"
)

// openSource reads a recording from wherever one can lie: a .isc folder or .isc.zip, a stream as the daemon sends it,
// a Kineto trace or a SQLite file of Nsight Systems.
func openSource(path string) (*record.Recording, error) {
	rec, err := readSource(path)
	if err == nil {
		return rec, nil
	}
	code, hint := fault.General, "record it again, or ask whoever sent it to"
	switch {
	case errors.Is(err, os.ErrNotExist):
		code, hint = fault.Usage, "check the name; inferscope record --pid N -o NAME.isc makes one"
	case errors.Is(err, importer.ErrUnknown):
		hint = "give a .isc folder or .isc.zip, a trace of torch.profiler, or the SQLite export of Nsight Systems"
	}
	return nil, fault.New(code, hint, err)
}

func readSource(path string) (*record.Recording, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return isc.Read(path, isc.DefaultLimits())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, len(streamMagic))
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	switch head = head[:n]; {
	case bytes.HasPrefix(head, []byte(zipMagic)):
		return isc.Read(path, isc.DefaultLimits())
	case string(head) == streamMagic:
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		rec, err := record.ReadStream(f, record.DefaultLimits())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return rec, nil
	}
	return importer.Open(path)
}
