// Package fuzzing runs fuzz tests, guided by what Go's fuzzer learns of their code, or in a flood: Go's fuzzer hands
// each input to another process and reads all counters after it, which takes longer than most parsers do. A flood
// changes the inputs that it has found at random, in one process and without a look at the code, 10 to 50 times as
// fast.
package fuzzing

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Names of the environment: how long the flood of each test takes, where Go's fuzzer keeps the inputs that it found
// (the folder of the package in its cache), and the file that "NAME executions ns" is added to. scripts/fuzz.sh sets
// them.
const (
	envTime   = "INFERSCOPE_FLOOD"
	envCorpus = "INFERSCOPE_FLOOD_CORPUS"
	envLog    = "INFERSCOPE_FLOOD_LOG"
)

// maxLength bounds an input, bytes: what changes it makes it longer now and then.
const maxLength = 1 << 16

// Run is f.Fuzz(fn), or a flood where the environment asks for one. fn must not skip: it returns where there is nothing
// to test.
func Run(f *testing.F, fn any) {
	f.Helper()
	if guided := flag.Lookup("test.fuzz"); guided != nil && guided.Value.String() != "" {
		w := watch()
		f.Fuzz(reflect.MakeFunc(reflect.TypeOf(fn), func(args []reflect.Value) []reflect.Value {
			w.begins()
			defer w.ends()
			return reflect.ValueOf(fn).Call(args)
		}).Interface())
		return
	}
	length, err := time.ParseDuration(os.Getenv(envTime))
	if err != nil {
		f.Fuzz(fn)
		return
	}
	n := 4 // seeds of the test's own, about
	for _, pattern := range []string{
		filepath.Join(os.Getenv(envCorpus), f.Name(), "*"), filepath.Join("testdata", "fuzz", f.Name(), "*"),
	} {
		files, _ := filepath.Glob(pattern)
		n += len(files)
		for _, path := range files {
			if text, err := os.ReadFile(path); err == nil && !strings.HasPrefix(pattern, "testdata") {
				if args, ok := parse(string(text), reflect.TypeOf(fn)); ok {
					f.Add(args...)
				}
			}
		}
	}
	s := &flood{
		fn:    reflect.ValueOf(fn),
		watch: watch(),
		each:  length / time.Duration(n),
		rng:   rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1)),
	}
	f.Cleanup(func() { s.log(f.Name()) })
	f.Fuzz(reflect.MakeFunc(reflect.TypeOf(fn), s.run).Interface())
}

// What one input may cost: more is a failure like any other.
const (
	maxTime = time.Minute // on a machine that does a lot besides
	maxHeap = 2 << 30     // bytes, of the whole process
)

// watchdog ends the process, and so the test, where an input costs too much.
type watchdog struct {
	began   atomic.Int64 // ns since 1970; 0: nothing runs
	current atomic.Pointer[[]reflect.Value]
	name    string // of the test; written before began
}

func watch() *watchdog {
	w := &watchdog{}
	go w.run()
	return w
}

func (w *watchdog) begins() { w.began.Store(time.Now().UnixNano()) }
func (w *watchdog) ends()   { w.began.Store(0) }

func (w *watchdog) run() {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	for range time.Tick(100 * time.Millisecond) {
		began := w.began.Load()
		if began == 0 {
			continue
		}
		metrics.Read(heap)
		took := time.Since(time.Unix(0, began))
		if n := heap[0].Value.Uint64(); took > maxTime || n > maxHeap {
			kept := ""
			if args := w.current.Load(); args != nil {
				kept = keep(w.name, (*args)[1:])
			}
			text := fmt.Sprintf("an input takes %v and %d bytes; %s", took, n, kept)
			panic(text) //nolint:forbidigo // a test that hangs can be ended from outside only
		}
	}
}

// flood is one test.
type flood struct {
	fn    reflect.Value
	watch *watchdog
	each  time.Duration // for one input
	rng   *rand.Rand
	other [][]reflect.Value // inputs that came before
	n     uint64
	took  time.Duration

	failed bool
}

// run tests an input and what random changes make of it.
func (s *flood) run(args []reflect.Value) []reflect.Value {
	t := args[0].Interface().(*testing.T)
	begin := time.Now()
	s.one(t, args)
	for time.Since(begin) < s.each && !s.failed {
		for i := 0; i < 16 && !s.failed; i++ { // reading the clock may take as long as a test
			s.one(t, s.change(args))
		}
	}
	s.took += time.Since(begin)
	s.other = append(s.other, args[1:])
	return nil
}

// one calls the test, and keeps an input that fails where Go keeps those.
func (s *flood) one(t *testing.T, args []reflect.Value) {
	passed := false
	defer func() {
		if !passed && !s.failed { // the first is enough
			s.failed = true
			t.Log(keep(t.Name(), args[1:]))
		}
	}()
	s.n++
	s.watch.current.Store(&args)
	s.watch.name = t.Name()
	s.watch.begins()
	defer s.watch.ends()
	s.fn.Call(args)
	passed = !t.Failed()
}

func (s *flood) log(name string) {
	path := os.Getenv(envLog)
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintf(file, "%s %d %d\n", name, s.n, s.took.Nanoseconds())
}

// change returns an input that is a little different.
func (s *flood) change(args []reflect.Value) []reflect.Value {
	out := append([]reflect.Value{}, args...)
	for range 1 + s.rng.IntN(3) {
		i := 1 + s.rng.IntN(len(args)-1)
		var with reflect.Value
		if len(s.other) > 0 {
			with = s.other[s.rng.IntN(len(s.other))][i-1]
		}
		v := reflect.New(args[i].Type()).Elem()
		switch v.Kind() {
		case reflect.String:
			v.SetString(string(s.bytes([]byte(out[i].String()), func() []byte { return []byte(textOf(with)) })))
		case reflect.Slice:
			v.SetBytes(s.bytes(append([]byte{}, out[i].Bytes()...), func() []byte { return []byte(textOf(with)) }))
		case reflect.Bool:
			v.SetBool(!out[i].Bool())
		case reflect.Float32, reflect.Float64:
			v.SetFloat(out[i].Float() * s.rng.NormFloat64())
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			v.SetInt(int64(s.number(uint64(out[i].Int()))))
		default:
			v.SetUint(s.number(out[i].Uint()) & (1<<(8*v.Type().Size()-1)<<1 - 1))
		}
		out[i] = v
	}
	return out
}

func textOf(v reflect.Value) string {
	if !v.IsValid() {
		return ""
	}
	if v.Kind() == reflect.String {
		return v.String()
	}
	return string(v.Bytes())
}

// number returns a number near to another one, or near to a power of two.
func (s *flood) number(n uint64) uint64 {
	switch s.rng.IntN(4) {
	case 0:
		return n + uint64(s.rng.IntN(33)) - 16
	case 1:
		return 1<<s.rng.IntN(64) + uint64(s.rng.IntN(3)) - 1
	case 2:
		return s.rng.Uint64() >> s.rng.IntN(64)
	}
	return n ^ 1<<s.rng.IntN(64)
}

// telling are characters that mean something to one parser or another.
const telling = " \n\t:-,.;/\\\"'()[]{}<>=|&\x00\xff09azAZ"

// bytes changes a text in one place.
func (s *flood) bytes(b []byte, other func() []byte) []byte {
	if len(b) == 0 {
		return append(b, byte(s.rng.Uint32()))
	}
	at := s.rng.IntN(len(b))
	n := 1 + s.rng.IntN(min(len(b)-at, 1+s.rng.IntN(32)))
	switch s.rng.IntN(9) {
	case 0:
		b[at] ^= 1 << s.rng.IntN(8)
	case 1:
		b[at] = byte(s.rng.Uint32())
	case 2:
		b[at] = telling[s.rng.IntN(len(telling))]
	case 3: // a number in either order
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], s.number(0))
		if s.rng.IntN(4) == 0 {
			binary.BigEndian.PutUint64(word[:], s.number(0))
		}
		copy(b[at:], word[:1<<s.rng.IntN(4)])
	case 4:
		b = append(b[:at], b[at+n:]...)
	case 5: // twice
		b = append(b[:at+n], b[at:]...)
	case 6: // what is elsewhere
		copy(b[at:at+n], b[s.rng.IntN(len(b)):])
	case 7:
		with := other()
		if len(with) > 0 {
			from := s.rng.IntN(len(with))
			b = append(b[:at:at], with[from:]...)
		}
	case 8:
		b = b[:at]
	}
	return b[:min(len(b), maxLength)]
}

// keep writes an input down, in the form of Go's fuzzer.
func keep(test string, args []reflect.Value) string {
	var b strings.Builder
	b.WriteString("go test fuzz v1\n")
	for _, a := range args {
		if a.Kind() == reflect.String || a.Kind() == reflect.Slice {
			fmt.Fprintf(&b, "%s(%q)\n", strings.Replace(a.Type().String(), "uint8", "byte", 1), textOf(a))
		} else {
			fmt.Fprintf(&b, "%s(%v)\n", a.Type(), a.Interface())
		}
	}
	sum := fnv.New64a()
	sum.Write([]byte(b.String()))
	name, _, _ := strings.Cut(test, "/")
	dir := filepath.Join("testdata", "fuzz", name)
	path := filepath.Join(dir, fmt.Sprintf("%016x", sum.Sum64()))
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(b.String()), 0o644)
	}
	if err != nil {
		return "the input that fails could not be written: " + err.Error()
	}
	return "failing input written to " + path
}

// parse reads what keep and Go's fuzzer write, for a test of a type; false where it is of another test.
func parse(text string, of reflect.Type) ([]any, bool) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != of.NumIn() || lines[0] != "go test fuzz v1" {
		return nil, false
	}
	var out []any
	for i, line := range lines[1:] {
		kind := of.In(i + 1)
		name, rest, _ := strings.Cut(line, "(")
		rest = strings.TrimSuffix(rest, ")")
		v := reflect.New(kind).Elem()
		var err error
		switch kind.Kind() {
		case reflect.String, reflect.Slice:
			rest, err = strconv.Unquote(rest)
			if kind.Kind() == reflect.String {
				v.SetString(rest)
			} else {
				v.SetBytes([]byte(rest))
			}
		case reflect.Bool:
			v.SetBool(rest == "true")
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			var n int64
			n, err = strconv.ParseInt(rest, 10, 64)
			v.SetInt(n)
		case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			var n uint64
			n, err = strconv.ParseUint(rest, 10, 64)
			v.SetUint(n)
		case reflect.Uint8: // written as a character
			rest, err = strconv.Unquote(rest)
			if err == nil && name == "byte" {
				v.SetUint(uint64([]rune(rest)[0] & 0xff))
			}
		default:
			return nil, false
		}
		if err != nil {
			return nil, false
		}
		out = append(out, v.Interface())
	}
	return out, true
}
