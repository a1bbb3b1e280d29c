package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/importer"
)

// The first bytes of files that can be a recording.
const (
	streamMagic = "ISCOPE\r\n"
	zipMagic    = "PK"
)

// openSource reads a recording from wherever one can lie: a .isc folder or .isc.zip, a stream as the daemon sends it,
// a Kineto trace or a SQLite file of Nsight Systems.
func (g *global) openSource(ctx context.Context, path string) (*recording.Recording, error) {
	rec, err := g.readSource(ctx, path)
	if err == nil {
		return rec, nil
	}
	code, hint := clierror.General, "record it again, or ask whoever sent it to"
	switch {
	case errors.Is(err, os.ErrNotExist):
		code, hint = clierror.Usage, "check the name; inferscope record --pid N -o NAME.isc makes one"
	case errors.Is(err, importer.ErrUnknown):
		hint = "give a .isc folder or .isc.zip, a trace of torch.profiler, or the SQLite export of Nsight Systems"
	}
	return nil, clierror.New(code, hint, err)
}

func (g *global) readSource(ctx context.Context, path string) (*recording.Recording, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return archive.ReadContext(ctx, path, archive.LimitsFor(g.maxMemory))
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
		return archive.ReadContext(ctx, path, archive.LimitsFor(g.maxMemory))
	case string(head) == streamMagic:
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		rec, err := recording.ReadStream(f, recording.DefaultLimits())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return rec, nil
	}
	return importer.OpenContext(ctx, path, importer.LimitsFor(g.maxMemory))
}
