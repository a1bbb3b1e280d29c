package cudasim

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// ChangedText counts the bytes in which the text that a process has mapped of a library differs from the file: a uprobe
// is a breakpoint, or a jump, written there.
func ChangedText(t testing.TB, pid int, base string) int {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	must.NoError(t, err)
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	must.NoError(t, err)
	defer memory.Close()
	changed, compared := 0, 0
	for line := range strings.Lines(string(maps)) {
		var start, end, offset uint64
		var flags, dev, inode, path string
		n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %s %s", &start, &end, &flags, &offset, &dev, &inode, &path)
		if n < 7 || !strings.Contains(flags, "x") || !strings.Contains(path, base) {
			continue
		}
		changed += differences(t, memory, path, start, offset, int(end-start))
		compared++
	}
	if compared == 0 {
		t.Fatalf("pid %d has mapped no text of %s", pid, base)
	}
	return changed
}

func differences(t testing.TB, memory io.ReaderAt, path string, start, offset uint64, size int) int {
	t.Helper()
	file, err := os.Open(path)
	must.NoError(t, err)
	defer file.Close()
	mapped, stored := make([]byte, size), make([]byte, size)
	if _, err := memory.ReadAt(mapped, int64(start)); err != nil {
		t.Fatalf("read memory at %#x: %v", start, err)
	}
	if n, err := file.ReadAt(stored, int64(offset)); err != nil && n == 0 {
		t.Fatalf("read %s at %#x: %v", path, offset, err)
	}
	changed := 0
	for i := range mapped {
		if mapped[i] != stored[i] {
			changed++
		}
	}
	return changed
}
