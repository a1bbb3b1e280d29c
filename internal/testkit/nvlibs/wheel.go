package nvlibs

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// fetchWheel downloads a Python wheel without what it depends on, and unpacks it.
func fetchWheel(scratch, out, requirement string) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return fmt.Errorf("python3 with pip is needed to fetch from PyPI: %w", err)
	}
	cmd := exec.Command(python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
		"--disable-pip-version-check", "--retries", "1", "--timeout", "20", "-d", scratch, requirement)
	if _, err := output(cmd); err != nil {
		return err
	}
	wheels, err := filepath.Glob(filepath.Join(scratch, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return fmt.Errorf("pip download left %d wheels", len(wheels))
	}
	return unzip(wheels[0], out)
}

// maxWheel bounds what one wheel may unpack to, in bytes: CUPTI 13 takes 300 MB.
const maxWheel = 1 << 30

func unzip(archive, out string) error {
	r, err := zip.OpenReader(archive)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Base(archive), err)
	}
	defer r.Close()
	root, err := os.OpenRoot(out) // refuses names that lead out of it
	if err != nil {
		return err
	}
	defer root.Close()
	left := int64(maxWheel)
	for _, f := range r.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		n, err := extract(root, f, left)
		if err != nil {
			return fmt.Errorf("unpack %s of %s: %w", f.Name, filepath.Base(archive), err)
		}
		left -= n
	}
	return nil
}

func extract(root *os.Root, f *zip.File, limit int64) (int64, error) {
	if err := root.MkdirAll(filepath.Dir(f.Name), 0o755); err != nil {
		return 0, err
	}
	in, err := f.Open()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	to, err := root.OpenFile(f.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(to, io.LimitReader(in, limit+1))
	if n > limit {
		err = fmt.Errorf("more than %d bytes", int64(maxWheel))
	}
	if closed := to.Close(); err == nil {
		err = closed
	}
	return n, err
}
