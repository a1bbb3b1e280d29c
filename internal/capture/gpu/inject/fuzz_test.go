package inject

import (
	"bytes"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzStatus: of /proc/PID/status nothing that cannot be read may look as if signals were free to send.
func FuzzStatus(f *testing.F) {
	f.Add([]byte("Name:\tx\nState:\tS (sleeping)\nTgid:\t1\nTracerPid:\t0\nSigBlk:\t0000000000000004\nNStgid:\t9\t1\n"))
	f.Add([]byte("SigBlk:\tx\nSigCgt:\t\n"))
	fuzzing.Run(f, func(t *testing.T, text []byte) {
		s := parseStatus(text)
		if bytes.HasPrefix(text, []byte("SigBlk:\tx")) && bytes.Count(text, []byte("SigBlk:")) == 1 &&
			s.blocked != ^uint64(0) {
			t.Errorf("%q: blocked %x", text, s.blocked)
		}
		if len(s.nspids) > len(text) {
			t.Errorf("%q: %d pids", text, len(s.nspids))
		}
	})
}

// FuzzVMAs: each mapping has a length, is in the text, and comes with the one before it.
func FuzzVMAs(f *testing.F) {
	f.Add([]byte("1000-2000 rw-p 0 0:0 0 [stack]\n2000-3000 ---p 0 0:0 0\n"), uint64(0x1800))
	f.Add([]byte("2000-1000 rw-p 0 0:0 0 /x y\n\n-"), uint64(0))
	fuzzing.Run(f, func(t *testing.T, text []byte, sp uint64) {
		var last vma
		all, _ := parseVMAs(bytes.NewReader(text), func(before, v vma) bool {
			if before != last {
				t.Errorf("%+v comes before %+v, not %+v", before, v, last)
			}
			last = v
			return sp >= v.start && sp < v.end
		})
		for _, v := range all {
			if v.start >= v.end || sp < v.start || sp >= v.end || !bytes.Contains(text, []byte(v.name)) {
				t.Errorf("%q: %+v", text, v)
			}
		}
	})
}
