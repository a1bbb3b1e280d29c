package symbol_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// xzOf packs with the real tool.
func xzOf(t testing.TB, plain []byte, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("needs xz")
	}
	cmd := exec.Command("xz", append(args, "-c")...)
	cmd.Stdin = bytes.NewReader(plain)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("xz %v: %v", args, err)
	}
	return out
}

// inStream puts LZMA2 chunks into a stream of one block without a checksum.
func inStream(chunks []byte, dictionary byte) []byte {
	summed := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }
	out := append([]byte("\xfd7zXZ\x00"), summed([]byte{0, 0})...)
	out = append(out, summed([]byte{2, 0, 0x21, 1, dictionary, 0, 0, 0})...)
	out = append(out, chunks...)
	return append(out, make([]byte, -len(out)&3+1)...) // padding, and where the index begins
}

// TestUnpack undoes what the tool that makes .gnu_debugdata writes, with each of its options that matter.
func TestUnpack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	plain := make([]byte, 300_000) // some of it can be packed, some cannot
	for i := range plain {
		plain[i] = byte(rng.Uint32() >> (rng.Uint32() % 3 * 4 * uint32(i>>16)))
	}
	for _, args := range []string{
		"", "-0", "-9e", "-C crc32", "-C sha256", "-C none", "--block-size=65536", "--lzma2=lc=0,lp=2,pb=0",
	} {
		for _, want := range [][]byte{plain, plain[:1], {}} {
			packed := xzOf(t, want, strings.Fields(args)...)
			if got, err := symbol.Unpack(packed); err != nil || !bytes.Equal(got, want) {
				t.Errorf("xz %s of %d bytes: %d bytes, %v", args, len(want), len(got), err)
			}
			for range 20 { // a bit of the last block, or of what protects it
				if len(want) < 2 || args == "-C none" {
					break
				}
				changed := bytes.Clone(packed)
				changed[12+rng.IntN(len(packed)-100)] ^= 1 << rng.IntN(8)
				if got, err := symbol.Unpack(changed); err == nil && !bytes.Equal(got, want) {
					t.Errorf("xz %s: a changed bit is not seen", args)
				}
			}
		}
	}
}

// TestUnpackRefuses: what would cost more than a library's symbols is refused from its headers, before anything is
// allocated for it.
func TestUnpackRefuses(t *testing.T) {
	bomb := xzOf(t, make([]byte, 64<<20), "-0")
	// An empty chunk, stored, in 4 bytes, and one that resets the state of 6 MB that lc=8, lp=4 ask for.
	storm := bytes.Repeat([]byte{1, 0, 0, 'x'}, 1<<20)
	for name, packed := range map[string][]byte{
		"64 MiB of zeros":  bomb,
		"chunks of a byte": inStream(storm, 0),
		"large properties": inStream([]byte{0xe0, 0, 0, 0, 5, 4*9 + 8, 0, 0, 0, 0, 0, 0, 0}, 0),
		"no chunk ends it": inStream(bytes.Repeat([]byte{1, 0, 0, 'x'}, 3), 0)[:36],
		"another filter": append([]byte("\xfd7zXZ\x00\x00\x00\xff\x12\xd9A"),
			[]byte{2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0}...),
		"a longer one":      inStream([]byte{0xe0, 0xff, 0xff, 0, 5, 93, 0, 0, 0, 0, 0, 0, 0}, 0),
		"only a beginning":  []byte("\xfd7zXZ\x00"),
		"nothing":           nil,
		"a dictionary of 0": inStream([]byte{0}, 41),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := symbol.Unpack(packed)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: %d bytes without an error", name, len(got))
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: %d bytes were allocated", name, n)
		}
	}
	// The largest dictionary that can be asked for, for one byte.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := symbol.Unpack(inStream([]byte{1, 0, 0, 'x', 0}, 40))
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; err != nil || string(got) != "x" || n > 1<<20 {
		t.Errorf("a dictionary of 4 GiB: %q, %v, %d bytes were allocated", got, err, n)
	}
}

// FuzzUnpack takes a stream, and the chunks of one: no fuzzer guesses the checksums of its headers. What is unpacked is
// as large as the headers of the chunks say, and no larger than the limit.
func FuzzUnpack(f *testing.F) {
	f.Add(
		[]byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4F\x00\x00\x00\x00\x1c\xdfD!\x1f\xb6\xf3}\x01\x00\x00\x00\x00\x04YZ"),
		byte(0),
	)
	f.Add([]byte{1, 0, 2, 'a', 'b', 'c', 2, 0, 0, 'd', 0}, byte(8))
	if _, err := exec.LookPath("xz"); err == nil {
		f.Add(xzOf(f, []byte(strings.Repeat("abcdefg hij ", 40)), "-0", "-C", "none")[24:], byte(18))
		f.Add(xzOf(f, []byte(strings.Repeat("abcdefg hij ", 40)), "-0"), byte(0))
	}
	fuzzing.Run(f, func(t *testing.T, b []byte, dictionary byte) {
		for _, packed := range [][]byte{b, inStream(b, dictionary)} {
			got, err := symbol.Unpack(packed)
			if err == nil && len(got) > 32<<20 {
				t.Fatalf("%d bytes", len(got))
			}
			if again, errAgain := symbol.Unpack(packed); (err == nil) != (errAgain == nil) || !bytes.Equal(got, again) {
				t.Fatalf("%d bytes and %v, then %d and %v", len(got), err, len(again), errAgain)
			}
		}
	})
}
