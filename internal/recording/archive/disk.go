package archive

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"

	"golang.org/x/sync/errgroup"

	"github.com/inferscope/inferscope/internal/recording/outfile"
)

// tempSuffix ends the names of files that are being written.
const tempSuffix = ".tmp"

// pending is a file that is whole on the disk under a temporary name.
type pending struct {
	parquetFile
	in *outfile.Folder
}

// counted hashes and counts what passes.
type counted struct {
	w   io.Writer
	sum hash.Hash
	n   int64
}

// Write hashes what was written, whatever became of the rest.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.sum.Write(b[:n])
	return n, err
}

// writeTemp writes a file under a temporary name. Nothing is left after an error.
func writeTemp(in *outfile.Folder, name string, write func(io.Writer) error) (p pending, err error) {
	p = pending{parquetFile: parquetFile{Name: name}, in: in}
	file, err := in.Create(name + tempSuffix)
	if err != nil {
		return p, fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = in.Remove(name + tempSuffix)
		}
	}()
	if err := errors.Join(p.fill(file, write), file.Close()); err != nil {
		return p, fmt.Errorf("write %s: %w", name, err)
	}
	return p, nil
}

// fill writes the file's content, and notes its size and checksum.
func (p *pending) fill(file io.Writer, write func(io.Writer) error) error {
	out := &counted{w: file, sum: sha256.New()}
	buffer := bufio.NewWriterSize(out, 256<<10)
	err := write(buffer)
	if err == nil {
		err = buffer.Flush()
	}
	p.Bytes, p.SHA256 = out.n, hex.EncodeToString(out.sum.Sum(nil))
	return err
}

// syncAll makes sure that files and folders are on the disk. Many at a time: a disk takes about as long for all as for
// one.
func syncAll(in *outfile.Folder, names []string) error {
	var group errgroup.Group
	group.SetLimit(16)
	for _, name := range names {
		group.Go(func() error { return in.Sync(name) })
	}
	return group.Wait()
}

// place renames a file to its name.
func (p *pending) place() error {
	if err := p.in.Rename(p.Name+tempSuffix, p.Name); err != nil {
		return fmt.Errorf("put a file into its place: %w", err)
	}
	return nil
}

// settle syncs one file to disk and renames it to its final name.
func (p *pending) settle() error {
	if err := p.in.Sync(p.Name + tempSuffix); err != nil {
		return err
	}
	if err := p.place(); err != nil {
		return err
	}
	return p.in.Sync(path.Dir(p.Name))
}

// discard removes a file, whether it is in its place or not.
func (p *pending) discard() {
	_ = p.in.Remove(p.Name + tempSuffix)
	_ = p.in.Remove(p.Name)
}
