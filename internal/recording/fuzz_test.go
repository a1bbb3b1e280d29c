package recording_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// FuzzReadStream reads anything; more seeds lie in testdata.
func FuzzReadStream(f *testing.F) {
	f.Add(write(f, sample()))
	f.Add(write(f, recordtest.New().Recording()))
	f.Add(frame(withMeta(`{"schema":1,"to_ns":100}`), 2, 64))
	fuzzing.Run(f, checkStream)
}

// FuzzReadFrames reads any meta and any frames with the end that belongs to them,
// which no fuzzer guesses, so that what lies behind the checksum is reached.
func FuzzReadFrames(f *testing.F) {
	events := make([]byte, 2*event.Size)
	events[0], events[64] = 9, 3
	f.Add([]byte(`{"schema":1,"from_ns":0,"to_ns":100}`), frame(nil, 2, 128, events...))
	f.Add([]byte(`{"schema":1,"from_ns":5,"to_ns":100}`), frame(frame(nil, 7, 1, 1), 2, 64, events[:64]...))
	f.Add([]byte(`{"schema":1,"threads":[{},{"tid":4}]}`), []byte{})
	fuzzing.Run(f, func(t *testing.T, meta, frames []byte) {
		stream := frame(begin(1), 1, uint32(len(meta)), meta...)
		sum, count := crc32.Checksum(meta, crc32.MakeTable(crc32.Castagnoli)), uint64(0)
		for len(frames) >= 8 {
			kind, n := binary.LittleEndian.Uint32(frames), int(binary.LittleEndian.Uint32(frames[4:]))
			if n > len(frames)-8 {
				break
			}
			stream = append(stream, frames[:8+n]...)
			sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), frames[8:8+n])
			if kind == 2 {
				count += uint64(n / event.Size)
			}
			frames = frames[8+n:]
		}
		stream = frame(stream, 3, 12)
		stream = binary.LittleEndian.AppendUint64(stream, count)
		checkStream(t, binary.LittleEndian.AppendUint32(stream, sum))
	})
}

// checkStream: what is accepted is sorted, lies in its window and survives a round trip.
func checkStream(t *testing.T, stream []byte) {
	rec, err := recording.ReadStream(bytes.NewReader(stream), recording.Limits{Meta: 1 << 20, Events: 1 << 20})
	if err != nil {
		return
	}
	for i, e := range rec.Events {
		if e.TS > rec.Meta.To || e.End() < rec.Meta.From || e.End() < e.TS {
			t.Fatalf("event %d [%d, %d] lies outside of [%d, %d]", i, e.TS, e.End(), rec.Meta.From, rec.Meta.To)
		}
		if i > 0 && e.TS < rec.Events[i-1].TS {
			t.Fatalf("event %d of %d follows %d", i, e.TS, rec.Events[i-1].TS)
		}
	}
	again, err := read(write(t, rec))
	must.NoError(t, err)
	if diff := cmp.Diff(rec.Events, again.Events); diff != "" {
		t.Fatal(diff)
	}
}
