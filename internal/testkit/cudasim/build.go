// Package cudasim is test support: it builds the simulated CUDA of testdata/cudasim and the victims of
// testdata/victims, runs victims under it, and reads the truth that the simulator wrote down.
package cudasim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Paths describes where the built simulator and victims lie.
type Paths struct {
	Root         string // the repository
	Sim          string // libcudart.so.13, libcupti.so.13, and r535 and r580 with a libcuda.so.1 each
	Victim       string // loads its CUDA library with dlopen
	VictimLinked string // linked with libcuda
	VictimStatic string // the runtime linked in statically
	VictimPython string // victim.py, for a Python 3 interpreter
}

// Shape535 and Shape580 are the two entry shapes of libcuda: drivers 470 to 555, and 580.
const (
	Shape535 = 535
	Shape580 = 580
)

// Libcuda is the simulated driver library of an entry shape.
func (p Paths) Libcuda(shape int) string {
	return filepath.Join(p.Sim, "r"+strconv.Itoa(shape), "libcuda.so.1")
}

// Libcudart is the simulated runtime library.
func (p Paths) Libcudart() string { return filepath.Join(p.Sim, "libcudart.so.13") }

// Libcupti is the simulated profiling library.
func (p Paths) Libcupti() string { return filepath.Join(p.Sim, "libcupti.so.13") }

// LibraryPath is the LD_LIBRARY_PATH that gives a program the simulated CUDA of an entry shape. With the older driver
// there is the libcupti of CUDA 12 beside that of 13, which such a driver cannot serve.
func (p Paths) LibraryPath(shape int) string {
	path := filepath.Dir(p.Libcuda(shape)) + ":" + p.Sim
	if shape == Shape535 {
		path += ":" + filepath.Join(p.Sim, "cupti12")
	}
	return path
}

var built = sync.OnceValues(build)

// errNoCompiler is why a test that needs the simulator is skipped.
var errNoCompiler = errors.New("no C compiler or make on this machine")

// Build builds the simulator and the victims into build/ of the repository, once for all tests of all packages that run
// at the same time, and skips the test where there is no C compiler.
func Build(tb testing.TB) Paths {
	tb.Helper()
	p, err := built()
	if errors.Is(err, errNoCompiler) {
		tb.Skip("cudasim: " + err.Error())
	}
	if err != nil {
		tb.Fatalf("cudasim: %v", err)
	}
	return p
}

func build() (Paths, error) {
	root, err := Root()
	if err != nil {
		return Paths{}, err
	}
	p := pathsIn(root)
	if !haveCompiler() {
		return p, errNoCompiler
	}
	unlock, err := lock(filepath.Join(root, "build", "cudasim.lock"))
	if err != nil {
		return p, err
	}
	defer unlock()
	if err := runMake(root, "testdata/cudasim", p.Sim); err != nil {
		return p, err
	}
	return p, runMake(root, "testdata/victims", filepath.Dir(p.Victim)) // links what the first built
}

// runMake sets where the output goes and hides an outer make, whose variables would come along in the environment.
func runMake(root, dir, out string) error {
	cmd := exec.Command("make", "-s", "-C", filepath.Join(root, dir), "OUT="+out)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MAKE") && !strings.HasPrefix(v, "MFLAGS=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make -C %s: %w\n%s", dir, err, text)
	}
	return nil
}

func pathsIn(root string) Paths {
	victims := filepath.Join(root, "build", "victims")
	return Paths{
		Root: root, Sim: filepath.Join(root, "build", "cudasim"),
		Victim: filepath.Join(victims, "victim"), VictimLinked: filepath.Join(victims, "victim-linked"),
		VictimStatic: filepath.Join(victims, "victim-static"),
		VictimPython: filepath.Join(root, "testdata", "victims", "victim.py"),
	}
}

func haveCompiler() bool {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	_, errCC := exec.LookPath(cc)
	_, errMake := exec.LookPath("make")
	return errCC == nil && errMake == nil
}

// Root is the nearest directory above the working directory that has a go.mod: tests run in their package's folder.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod above %s: run the tests inside the repository", dir)
		}
	}
}

// lock takes a file lock across processes, so that parallel test packages build one after the other.
func lock(path string) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the build folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the build lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("take the build lock: %w", err)
	}
	return func() { f.Close() }, nil
}
