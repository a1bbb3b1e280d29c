//go:build amd64 || arm64

package inject

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

func needRoot(tb testing.TB) {
	tb.Helper()
	for _, n := range (feature.Prober{}).Detect().Capabilities.Missing() {
		if !n.Optional {
			tb.Skip("needs root, or ", n.Needs, " for ", n.For)
		}
	}
}

const repo = "../../../.."

// buildInjectees builds testdata/injectees once for all tests, or skips.
var buildInjectees = sync.OnceValues(func() (string, error) {
	out, err := filepath.Abs(filepath.Join(repo, "build", "injectees"))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("make", "-s", "-C", filepath.Join(repo, "testdata", "injectees"), "OUT="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make: %w\n%s", err, text)
	}
	return out, nil
})

func injectees(tb testing.TB) string {
	tb.Helper()
	if dir := os.Getenv("INFERSCOPE_TEST_INJECTEES"); dir != "" {
		return dir // for a machine without a compiler
	}
	needs.Tool(tb, "gcc")
	dir, err := buildInjectees()
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// victim is a running injectee.
type victim struct {
	tb      testing.TB
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	process *proc.Process
	stderr  bytes.Buffer
}

func start(tb testing.TB, args ...string) *victim {
	tb.Helper()
	return startCmd(tb, exec.Command(filepath.Join(injectees(tb), "injectee"), args...))
}

func startCmd(tb testing.TB, cmd *exec.Cmd) *victim {
	tb.Helper()
	v := &victim{tb: tb, cmd: cmd}
	cmd.Stderr = &v.stderr
	c := child.Start(tb, cmd)
	v.in, v.out = c.In, c.Out
	v.readLine("ready")
	v.describe(cmd.Process.Pid)
	return v
}

func (v *victim) describe(pid int) {
	v.tb.Helper()
	p, err := proc.Describe(pid)
	if err != nil {
		v.tb.Fatal(err)
	}
	v.process = p
	v.tb.Cleanup(func() { p.Close() })
}

func (v *victim) readLine(word string) string {
	v.tb.Helper()
	for v.out.Scan() {
		if rest, ok := strings.CutPrefix(v.out.Text(), word+" "); ok {
			return rest
		}
	}
	v.tb.Fatalf("the victim ended before it said %q; stderr: %s", word, v.stderr.String())
	return ""
}

// count asks for calls made, differences found and signals handled.
func (v *victim) count() (calls, errs, handled int) {
	v.tb.Helper()
	if _, err := io.WriteString(v.in, "count\n"); err != nil {
		v.tb.Fatalf("the victim is gone: %v; stderr: %s", err, v.stderr.String())
	}
	if _, err := fmt.Sscan(v.readLine("count"), &calls, &errs, &handled); err != nil {
		v.tb.Fatal(err)
	}
	return calls, errs, handled
}

// unharmed checks that the victim goes on as before: it makes calls, has found nothing
// changed, no thread is stopped or traced, and it ends well.
func (v *victim) unharmed() {
	v.tb.Helper()
	before, _, _ := v.count()
	v.free()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		calls, errs, _ := v.count()
		if errs != 0 {
			v.tb.Fatalf("%d differences: %s", errs, v.stderr.String())
		}
		if calls > before {
			break
		}
		if time.Now().After(deadline) {
			v.tb.Fatal("the victim makes no calls any more")
		}
	}
}

// returned waits until none of these threads is in a call of ours, which one that was let go by a death still makes,
// whenever it has its turn: all its signals wait meanwhile, and the victim holds back none for longer than a call.
func (v *victim) returned(tids []int) {
	v.tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(tids, func(tid int) bool {
			s, err := readStatus(int(v.process.PID), tid)
			return err == nil && has(s.blocked, unix.SIGUSR2)
		}) {
			return
		}
		if time.Now().After(deadline) {
			v.tb.Fatal("a thread does not come back from a call of ours")
		}
	}
}

// free waits until no thread is stopped or traced.
func (v *victim) free() {
	v.tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		bad := v.held()
		if bad == "" {
			return
		}
		if time.Now().After(deadline) {
			v.tb.Fatal(bad)
		}
		time.Sleep(time.Millisecond)
	}
}

func (v *victim) held() string {
	v.tb.Helper()
	for _, tid := range v.tids() {
		s, err := readStatus(int(v.process.PID), tid)
		if err == nil && (s.tracer != 0 || s.state == 'T' || s.state == 't') {
			return fmt.Sprintf("thread %d is in state %c, traced by %d", tid, s.state, s.tracer)
		}
	}
	return ""
}

func (v *victim) tids() []int {
	v.tb.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", v.process.PID))
	if err != nil {
		v.tb.Fatal(err)
	}
	var tids []int
	for _, e := range entries {
		tids = append(tids, int(number(e.Name())))
	}
	return tids
}

// finish ends the victim and fails unless it ended well.
func (v *victim) finish() {
	v.tb.Helper()
	v.in.Close()
	if err := v.cmd.Wait(); err != nil {
		v.tb.Fatalf("the victim: %v; stderr: %s", err, v.stderr.String())
	}
}

// The Go side of testdata/injectees/image.h.
const (
	imageParams = 0x5041524d
	imageHello  = 0x48454c4c
)

type params struct {
	Magic   uint32
	FD      int32
	HelloAt uint64
	SleepUS uint32
	_       uint32
}

type hello struct {
	Magic          uint32
	PID, TID       int32
	Starts         uint32
	Entered, Left  uint64
	Stack, Blocked uint64
}

// testImage makes an Image of image.so.
func testImage(tb testing.TB) Image {
	tb.Helper()
	content, err := os.ReadFile(filepath.Join(injectees(tb), "image.so"))
	if err != nil {
		tb.Fatal(err)
	}
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		tb.Fatal(err)
	}
	im := Image{Bytes: content, Size: helloAt(content) + 4096}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		tb.Fatal(err)
	}
	section := file.Section(".inferscope")
	for _, s := range symbols {
		switch s.Name {
		case "image_params":
			im.ParamsOffset = int(s.Value - section.Addr + section.Offset)
		case "image_start":
			im.StartOffset = s.Value
		}
	}
	lib := file.Section(".note.gnu.build-id")
	note, err := lib.Data()
	if err != nil {
		tb.Fatal(err)
	}
	copy(im.BuildID[:], note[16:])
	im.Params, im.FDAt = (&params{HelloAt: uint64(helloAt(content))}).bytes(), 4
	return im
}

func helloAt(content []byte) int64 { return int64(len(content)+4095) &^ 4095 }

func (p *params) bytes() []byte {
	p.Magic = imageParams
	b, err := binary.Append(nil, binary.LittleEndian, p)
	if err != nil {
		panic(err)
	}
	return b
}

// greet waits for the image's hello.
func greet(ctx context.Context, v *victim, im Image, r *Result) (hello, error) {
	var h hello
	b, err := r.Await(ctx, v.process, helloAt(im.Bytes), binary.Size(h), func(b []byte) bool {
		return binary.LittleEndian.Uint32(b) == imageHello
	})
	if err != nil {
		return h, err
	}
	_, err = binary.Decode(b, binary.LittleEndian, &h)
	return h, err
}

// descriptors returns how many files the victim has open.
func (v *victim) descriptors() int {
	v.tb.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", v.process.PID))
	if err != nil {
		v.tb.Fatal(err)
	}
	return len(entries)
}

// copies returns how many copies of an image the victim has mapped.
func (v *victim) copies() int {
	v.tb.Helper()
	all, err := proc.Mappings(v.process)
	if err != nil {
		v.tb.Fatal(err)
	}
	n := 0
	for _, m := range all {
		if strings.HasPrefix(m.Path, "/memfd:"+fileName) {
			n++
		}
	}
	return n
}

func isExit(err error) bool {
	var e *exec.ExitError
	return errors.As(err, &e)
}
