package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/hosts"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/importer"
)

// Magic numbers of files that can hold a recording.
const (
	streamMagic = "ISCOPE\r\n"
	zipMagic    = "PK"
)

// openSource reads a recording: a .isc folder or .isc.zip, a stream from the daemon, a Kineto trace or a SQLite file of
// Nsight Systems.
func (g *global) openSource(ctx context.Context, path string) (*recording.Recording, error) {
	rec, err := g.readSource(ctx, path)
	if err == nil {
		return rec, nil
	}
	code, hint := clierror.General, "record it again, or get a complete copy of it"
	_, missing := os.Stat(path)
	recordings, _ := filepath.Glob(filepath.Join(path, "*.isc*"))
	_, noManifest := os.Stat(filepath.Join(path, manifestName)) // of a file: it is no folder
	switch {
	case errors.Is(missing, os.ErrNotExist):
		code, hint = clierror.Usage, "check the name; inferscope record --pid N -o NAME.isc makes one"
	case isArchive(path) && errors.Is(noManifest, os.ErrNotExist):
		code, hint = clierror.Usage, "name a recording: a folder NAME.isc, or NAME.isc.zip"
	case errors.Is(err, importer.ErrNoTraces) && len(recordings) > 0:
		code, hint = clierror.Usage, "it has recordings: name those of one time, or ask about all with inferscope query"
	case errors.Is(err, importer.ErrUnknown), errors.Is(err, importer.ErrNoTraces):
		hint = "give a .isc folder or .isc.zip, traces of torch.profiler or a folder of them, or the SQLite export of Nsight Systems"
	}
	return nil, clierror.New(code, hint, err)
}

// isArchive reports whether a folder is a recording, complete or not; other folders may hold the traces of a program's
// ranks.
func isArchive(dir string) bool {
	if strings.HasSuffix(strings.TrimRight(dir, "/"), ".isc") {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, manifestName))
	return err == nil
}

// manifestName is the file that identifies a folder as a recording.
const manifestName = "manifest.json"

// isRecording reports whether path is a recording of InferScope rather than a file of another tool.
func isRecording(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	if info.IsDir() {
		return isArchive(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, len(streamMagic))
	n, _ := io.ReadFull(f, head) // of one that is shorter what there is
	return bytes.HasPrefix(head[:n], []byte(zipMagic)) || string(head[:n]) == streamMagic
}

// joinHosts reads the recordings of several hosts as one, and prints the differences of their clocks on stderr.
func (g *global) joinHosts(ctx context.Context, paths []string) (*recording.Recording, error) {
	var recs []*recording.Recording
	for _, path := range paths {
		rec, err := g.openSource(ctx, path)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	clocks, err := hosts.Solve(recs)
	if err != nil {
		return nil, clierror.New(
			clierror.General,
			"give recordings of ranks that communicate with each other, made at the same time with GPU records",
			fmt.Errorf("join %s: %w", strings.Join(paths, ", "), err),
		)
	}
	shifts, lines := make([]int64, len(recs)), []string{}
	for i, c := range clocks {
		shifts[i] = c.Shift
		if i > 0 {
			lines = append(lines, fmt.Sprintf("the clock of %s against that of %s: %s", paths[i], paths[0], clockText(&c)))
			fmt.Fprintln(g.stderr, "inferscope: "+format.Clean(lines[i-1]))
		}
	}
	rec, err := importer.Join(recs, shifts, strings.Join(lines, "; "))
	if err != nil {
		return nil, clierror.New(clierror.General, "analyze each recording alone", err)
	}
	return rec, nil
}

// clockText describes the difference between the clocks of two hosts and between their wall clocks.
func clockText(c *hosts.Clock) string {
	text := fmt.Sprintf("to within %s by %s; the wall clocks differ by %s",
		format.Span(c.Error), format.Plural(c.Collectives, "collective", "collectives"),
		format.Span(uint64(max(c.Wall-c.Shift, c.Shift-c.Wall))))
	if c.Ambiguous {
		text += "; steps are so regular that others fit as well, and the wall clocks decided"
	}
	return text
}

// openSources joins several files into one recording of a distributed program: recordings of several hosts, or files of
// other tools.
func (g *global) openSources(ctx context.Context, paths []string) (*recording.Recording, error) {
	if len(paths) == 1 {
		return g.openSource(ctx, paths[0])
	}
	if !slices.ContainsFunc(paths, func(p string) bool { return !isRecording(p) }) {
		return g.joinHosts(ctx, paths)
	}
	rec, err := importer.OpenAll(ctx, paths, importer.LimitsFor(g.maxMemory), false)
	if err != nil {
		return nil, clierror.New(clierror.General,
			"give several recordings, or several traces of torch.profiler or Nsight Systems", err)
	}
	return rec, nil
}

func (g *global) readSource(ctx context.Context, path string) (*recording.Recording, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() && !isArchive(path) {
		files, err := importer.Traces(path)
		if err != nil {
			return nil, err
		}
		return importer.OpenAll(ctx, files, importer.LimitsFor(g.maxMemory), true)
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
