package isc

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// tempSuffix ends the names of files that are being written.
const tempSuffix = ".tmp"

// pending is a file that is whole on the disk under a temporary name.
type pending struct {
	File
	path string // where it goes
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
func writeTemp(dir, name string, write func(io.Writer) error) (p pending, err error) {
	p = pending{File: File{Name: name}, path: filepath.Join(dir, filepath.FromSlash(name))}
	if err := os.MkdirAll(filepath.Dir(p.path), 0o777); err != nil {
		return p, fmt.Errorf("make a folder: %w", err)
	}
	file, err := os.OpenFile(p.path+tempSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return p, fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(p.path + tempSuffix)
		}
	}()
	out := &counted{w: file, sum: sha256.New()}
	buffer := bufio.NewWriterSize(out, 256<<10)
	err = write(buffer)
	if err == nil {
		err = buffer.Flush()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return p, fmt.Errorf("write %s: %w", name, err)
	}
	p.Bytes, p.SHA256 = out.n, hex.EncodeToString(out.sum.Sum(nil))
	return p, nil
}

// syncAll makes sure that files and folders are on the disk. Many at a time: a disk takes about as long for all as for one.
func syncAll(paths []string) error {
	var group errgroup.Group
	group.SetLimit(16)
	for _, path := range paths {
		group.Go(func() error { return syncPath(path) })
	}
	return group.Wait()
}

// place renames a file to its name.
func (p *pending) place() error {
	if err := os.Rename(p.path+tempSuffix, p.path); err != nil {
		return fmt.Errorf("put a file into its place: %w", err)
	}
	return nil
}

// settle makes sure that one file is on the disk, and under its name.
func (p *pending) settle() error {
	if err := syncPath(p.path + tempSuffix); err != nil {
		return err
	}
	if err := p.place(); err != nil {
		return err
	}
	return syncPath(filepath.Dir(p.path))
}

// discard removes a file, whether it is in its place or not.
func (p *pending) discard() {
	_ = os.Remove(p.path + tempSuffix)
	_ = os.Remove(p.path)
}

// syncPath makes sure that a file, or the names in a folder, are on the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("write to the disk: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s to the disk: %w", path, err)
	}
	return nil
}
