package archive

import (
	"archive/zip"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/recording/outfile"
)

// Pack writes the recording in folder dir into one zip file: everything that the manifest lists, which it verifies, and
// every other file of tables that this program does not know. What a writer left unfinished is left out. The file
// appears whole or not at all; force lets it replace another.
func Pack(dir, place string, force bool) error {
	s, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := readManifest(s)
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	names, err := contents(s, m)
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	return writeWhole(place, force, func(out io.Writer) error {
		return zipAll(s, out, folderName(dir), names, m.sums())
	})
}

// folderName is the name of the folder inside of a packed recording.
func folderName(dir string) string {
	name := filepath.Base(filepath.Clean(dir))
	if !safe(name) || !strings.HasSuffix(name, Extension) {
		return "recording" + Extension
	}
	return name
}

// contents returns the names of the files to pack, the manifest first: a reader of the zip finds it at once.
func contents(s store, m *Manifest) ([]string, error) {
	known, listed := knownTables(), m.files()
	entries, err := s.list()
	if err != nil {
		return nil, err
	}
	out, found := []string{manifestName}, 0
	for _, e := range entries {
		if listed[e.name] {
			found++
		}
		table, _, below := strings.Cut(e.name, "/")
		if e.name == manifestName || strings.HasSuffix(e.name, tempSuffix) || below && known[table] && !listed[e.name] {
			continue
		}
		if !safe(e.name) {
			return nil, fmt.Errorf("the name of its file %q cannot be packed", e.name)
		}
		out = append(out, e.name)
	}
	if missing := len(listed) - found; missing > 0 {
		return nil, fmt.Errorf("%d of the %d files that %s lists are missing", missing, len(listed), manifestName)
	}
	return out, nil
}

// knownTables returns the names of all tables that this program writes.
func knownTables() map[string]bool {
	known := map[string]bool{}
	for _, t := range eventTables() {
		known[t.name] = true
	}
	for _, t := range nameTables() {
		known[t.name] = true
	}
	return known
}

// files returns the names of all files that the manifest lists.
func (m *Manifest) files() map[string]bool {
	listed := map[string]bool{}
	for _, t := range m.Tables {
		for _, f := range t.Files {
			listed[f.Name] = true
		}
	}
	return listed
}

func zipAll(s store, out io.Writer, folder string, names []string, sums map[string]string) error {
	z := zip.NewWriter(out)
	for _, name := range names {
		if err := zipOne(z, s, folder, name, sums[name]); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("write the zip file: %w", err)
	}
	return nil
}

// zipOne packs a file; want is its SHA-256, or "" where the manifest has none.
func zipOne(z *zip.Writer, s store, folder, name, want string) error {
	in, size, err := s.open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	method := zip.Store // Parquet is compressed already
	if name == manifestName {
		method = zip.Deflate
	}
	// A fixed time, so that packing twice gives the same bytes. Zip begins in 1980.
	header := &zip.FileHeader{
		Name:     folder + "/" + name,
		Method:   method,
		Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	header.SetMode(0o644)
	sum := sha256.New()
	out, err := z.CreateHeader(header)
	if err == nil {
		_, err = io.CopyN(io.MultiWriter(out, sum), in, size)
	}
	if err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); want != "" && got != want {
		return changedError(name, got, want)
	}
	return nil
}

// writeWhole writes a file that appears whole or not at all.
func writeWhole(place string, force bool, write func(io.Writer) error) error {
	p, err := outfile.Open(place, nil)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	there, err := p.Exists()
	switch {
	case err != nil:
		return err
	case there && !force:
		return fmt.Errorf("%s is there: %w", place, os.ErrExist)
	}
	file, err := p.Create()
	if err != nil {
		return err
	}
	defer file.Discard()
	buffer := bufio.NewWriterSize(file, 256<<10)
	if err := write(buffer); err != nil {
		return err
	}
	if err := buffer.Flush(); err != nil {
		return fmt.Errorf("write %s: %w", place, err)
	}
	return file.Commit()
}

// Unpack makes a folder of a packed recording, with every file that is in it. It refuses to write over
// anything, and verifies what the manifest lists. An unpacked folder without its manifest was not finished.
func Unpack(place, dir string) error {
	s, err := openZip(place)
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := readManifest(s)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", place, err)
	}
	to, err := makeFolder(dir, false, nil)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	entries, err := s.list()
	if err != nil {
		return err
	}
	sums := m.sums()
	for _, e := range entries {
		if e.name == manifestName {
			continue
		}
		if err := unpackOne(s, to, e.name, sums); err != nil {
			return fmt.Errorf("unpack %s: %w", place, err)
		}
	}
	return unpackOne(s, to, manifestName, sums)
}

// sums returns the checksums of all files that the manifest lists.
func (m *Manifest) sums() map[string]string {
	sums := map[string]string{}
	for _, t := range m.Tables {
		for _, f := range t.Files {
			sums[f.Name] = f.SHA256
		}
	}
	return sums
}

func unpackOne(s store, to *outfile.Folder, name string, sums map[string]string) error {
	in, size, err := s.open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	p, err := writeTemp(to, name, func(out io.Writer) error {
		n, err := io.Copy(out, io.LimitReader(in, size+1))
		if err == nil && n != size {
			err = errors.New("it has not the size that the zip file says")
		}
		return err
	})
	if err != nil {
		return err
	}
	if want, listed := sums[name]; listed && want != p.SHA256 {
		p.discard()
		return changedError(name, p.SHA256, want)
	}
	return p.place()
}
