// Package nvlibs fetches NVIDIA's public libraries for tests that want the real
// thing: driver libraries and Nsight Systems from Debian's non-free packages, the runtime, CUPTI and NVTX
// from PyPI. They need no GPU: cuInit answers 100 (no device), and every function
// can be probed. Nothing of them is ever committed or shipped.
//
// Files are kept in INFERSCOPE_NVLIBS_DIR, or below the user's cache directory.
// A part that cannot be had (no network, not Debian, no pip) skips the test with
// the reason. With -short, only what is already there is used.
package nvlibs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Part names something to fetch.
type Part string

// The parts. A driver is libcuda.so.1 alone. Runtimes come with cuda.h and cuda_runtime_api.h.
const (
	Driver470 Part = "libcuda-470"
	Driver535 Part = "libcuda-535"
	Driver550 Part = "libcuda-550"
	Driver555 Part = "libcuda-555"
	Runtime11 Part = "cudart-11" // 11.8
	Runtime12 Part = "cudart-12" // 12.9
	Runtime13 Part = "cudart-13" // the newest 13
	CUPTI11   Part = "cupti-11"  // 11.8
	CUPTI12   Part = "cupti-12"  // 12.9
	CUPTI13   Part = "cupti-13"  // the newest 13
	NCCL      Part = "nccl-2.28" // 2.28.9: 200 MB to fetch
	NVTX      Part = "nvtx"      // version 3: headers, nvtx3/nvToolsExt.h
	Nsys2022  Part = "nsys-2022" // Nsight Systems 2022.4, of Debian 12: 170 MB to fetch, 600 MB on the disk
	Nsys2023  Part = "nsys-2023" // Nsight Systems 2023.4, of Debian 13: as much
)

// Drivers lists the driver libraries, oldest first.
func Drivers() []Part { return []Part{Driver470, Driver535, Driver550, Driver555} }

// Runtimes lists the runtime libraries, oldest first.
func Runtimes() []Part { return []Part{Runtime11, Runtime12, Runtime13} }

// source describes where a part comes from: one of the two is set.
type source struct {
	debs  []deb
	wheel string // PyPI requirement
}

// deb is a Debian package.
type deb struct {
	name  string
	major string // its upstream version begins with this: several are in the archive
	main  bool   // it is in main, and not in non-free
}

// nsys needs libssh for its importer, which reads what its agent wrote.
func nsys(version, libssh string) source {
	return source{
		debs: []deb{
			{"nsight-systems", version, false},
			{"nsight-systems-target", version, false},
			{"libssh-4", libssh, true},
		},
	}
}

func sources() map[Part]source {
	return map[Part]source{
		Driver470: {debs: []deb{{"libnvidia-tesla-470-cuda1", "470.", false}}},
		Driver535: {debs: []deb{{"libcuda1", "535.", false}}},
		Driver550: {debs: []deb{{"libcuda1", "550.", false}}},
		Driver555: {debs: []deb{{"libcuda1", "555.", false}}},
		Runtime11: {wheel: "nvidia-cuda-runtime-cu11==11.8.*"},
		Runtime12: {wheel: "nvidia-cuda-runtime-cu12==12.9.*"},
		Runtime13: {wheel: "nvidia-cuda-runtime==13.*"},
		CUPTI11:   {wheel: "nvidia-cuda-cupti-cu11==11.8.*"},
		CUPTI12:   {wheel: "nvidia-cuda-cupti-cu12==12.9.*"},
		CUPTI13:   {wheel: "nvidia-cuda-cupti==13.*"},
		NCCL:      {wheel: "nvidia-nccl-cu13==2.28.9"},
		NVTX:      {wheel: "nvidia-nvtx-cu12==12.9.*"},
		Nsys2022:  nsys("2022.4.", "0.10."),
		Nsys2023:  nsys("2023.4.", "0.11."),
	}
}

// Fetch returns the directory that holds part's unpacked files, fetching them
// first if need be. It skips the test where they cannot be had.
func Fetch(tb testing.TB, part Part) string {
	tb.Helper()
	dir, err := fetch(part, testing.Short())
	if err != nil {
		tb.Skipf("%s is not to be had: %v", part, err)
	}
	return dir
}

// Library returns the path of part's shared library itself: a regular file.
func Library(tb testing.TB, part Part) string {
	tb.Helper()
	for _, pattern := range []string{"libcuda.so.1", "libcudart.so.*", "libcupti.so.*", "libnccl.so.*"} {
		if path, ok := find(Fetch(tb, part), pattern); ok {
			return path
		}
	}
	tb.Fatalf("%s holds no library", part)
	return ""
}

// Header returns the path of one of part's header files, e.g. "cuda.h".
func Header(tb testing.TB, part Part, name string) string {
	tb.Helper()
	path, ok := find(Fetch(tb, part), name)
	if !ok {
		tb.Skipf("%s comes without %s", part, name)
	}
	return path
}

// find returns the file below dir whose name matches pattern, with links resolved.
func find(dir, pattern string) (string, bool) {
	var found string
	walk := func(path string, d os.DirEntry, err error) error {
		if ok, _ := filepath.Match(pattern, filepath.Base(path)); err != nil || !ok || d.IsDir() {
			return err
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			found = real
			return filepath.SkipAll
		}
		return nil // a link that leads out of the package: another file may do
	}
	err := filepath.WalkDir(dir, walk)
	return found, err == nil && found != ""
}

// errCached means that only the cache may be used and does not have the part.
var errCached = errors.New("it is not in the cache, and -short fetches nothing")

// retry is how long a failure is believed: each package's tests run in a process
// of their own, and each would wait for the same time-out.
const retry = 10 * time.Minute

func fetch(part Part, offline bool) (string, error) {
	src, ok := sources()[part]
	if !ok {
		return "", fmt.Errorf("no part is called %q", part)
	}
	root, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, string(part))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if offline {
		return "", errCached
	}
	note := dir + ".failed"
	if reason, ok := recent(note); ok {
		return "", errors.New(reason)
	}
	if err := fill(root, dir, src); err != nil {
		_ = os.WriteFile(note, []byte(err.Error()), 0o644)
		return "", err
	}
	return dir, nil
}

// fill fetches into a scratch directory and renames it into place, so that a part
// is there whole or not at all, whoever else fetches it at the same time.
func fill(root, dir string, src source) error {
	scratch, err := os.MkdirTemp(root, "fetch-")
	if err != nil {
		return fmt.Errorf("make a directory to fetch into: %w", err)
	}
	defer os.RemoveAll(scratch)
	out := filepath.Join(scratch, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if len(src.debs) > 0 {
		err = fetchDebs(scratch, out, src.debs)
	} else {
		err = fetchWheel(scratch, out, src.wheel)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(out, dir); err != nil && !exists(dir) {
		return fmt.Errorf("put the files into the cache: %w", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func cacheDir() (string, error) {
	root := os.Getenv("INFERSCOPE_NVLIBS_DIR")
	if root == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache directory (set INFERSCOPE_NVLIBS_DIR): %w", err)
		}
		root = filepath.Join(user, "inferscope", "nvlibs")
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory (set INFERSCOPE_NVLIBS_DIR to another): %w", err)
	}
	return root, nil
}

// recent returns the reason in a note that is not older than retry.
func recent(note string) (string, bool) {
	info, err := os.Stat(note)
	if err != nil || time.Since(info.ModTime()) > retry {
		return "", false
	}
	reason, err := os.ReadFile(note)
	return string(reason) + " (tried a few minutes ago)", err == nil
}
