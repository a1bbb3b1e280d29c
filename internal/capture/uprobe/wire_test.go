package uprobe

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/helper"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestLinkOverTheWire(t *testing.T) {
	b := batch{
		attach: attachUprobeSession,
		ret:    true,
		sites:  []Site{{Offset: 1 << 63, Cookie: 7}, {Offset: 3, Cookie: 1<<64 - 1}},
	}
	at := place{pid: 1 << 30, pmu: 9}
	packet, err := encodeLink(b, at)
	if err != nil || packet[0] != askLink {
		t.Fatal(packet, err)
	}
	gotB, gotAt, err := decodeLink(packet[1:])
	must.NoError(t, err)
	if diff := cmp.Diff(b, gotB, cmp.AllowUnexported(batch{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(at, gotAt, cmp.AllowUnexported(place{}), cmpopts.IgnoreTypes(&os.File{})); diff != "" {
		t.Error(diff)
	}
}

func TestAnswerOverTheWire(t *testing.T) {
	if id, err := decodeAnswer(encodeAnswer(77, nil)); id != 77 || err != nil {
		t.Error(id, err)
	}
	_, err := decodeAnswer(encodeAnswer(77, errors.Join(errors.New("so it is"), describe(errNotSupported))))
	if !errors.Is(err, unix.ENOTSUP) ||
		!strings.HasPrefix(err.Error(), "so it is\nthe kernel cannot probe this instruction") {
		t.Error(err)
	}
	if _, err := decodeAnswer(encodeAnswer(77, errors.New(strings.Repeat("long", maxAnswer)))); err == nil ||
		errors.Unwrap(err) != nil {
		t.Error(errors.Unwrap(err))
	}
	if _, err := decodeAnswer([]byte("short")); !errors.Is(err, errPacket) {
		t.Error(err)
	}
}

// Whatever a link holder is asked, it says that it is nonsense and waits for the next.
func TestHostilePackets(t *testing.T) {
	b := batch{attach: attachUprobeMulti, sites: []Site{{Offset: 1}, {Offset: 2}}}
	good, err := encodeLink(b, place{pid: 1})
	must.NoError(t, err)
	with := func(at int, b ...byte) []byte {
		return append(append(bytes.Clone(good[:at]), b...), good[at+len(b):]...)
	}
	perf := with(1, attachPerfEvent)
	hostile := map[string][]byte{
		"nothing but a word":        {askLink},
		"half a head":               good[:9],
		"no site":                   good[:17],
		"half a site":               good[:len(good)-8],
		"too many sites":            append(bytes.Clone(good), make([]byte, maxPacket)...),
		"a perf event of two sites": perf,
		"another way to attach":     with(1, 0),
		"neither return nor entry":  with(5, 2),
		"no process":                with(9, 0, 0, 0, 0),
	}
	ours, theirs, err := helper.Pair(helper.Packets)
	must.NoError(t, err)
	conn, err := helper.Connect(ours)
	must.NoError(t, err)
	defer conn.Close()
	served, err := helper.Connect(theirs)
	must.NoError(t, err)
	var k keep
	k.serving.Add(1)
	go k.serve(served)
	held, null, before := &kept{conn: conn, linkHolder: &LinkHolder{}}, os.Stdin, descriptors(t)
	ask := func(what string, packet []byte, files ...*os.File) {
		t.Helper()
		if err := send(conn, packet, files...); err != nil {
			t.Fatal(what, err)
		}
		if _, err := held.answer(); err == nil || !strings.Contains(err.Error(), errPacket.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, packet := range hostile {
		ask(what, packet, null, null)
	}
	ask("no files", good)
	ask("one file", good, null)
	ask("three files", good, null, null, null)
	if err := send(conn, []byte{askLink + 1}, null); err != nil { // which has no answer
		t.Fatal(err)
	}
	must.NoError(t, send(conn, good, null, null))
	if _, err := held.answer(); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		t.Errorf("what is no program: %v", err)
	}
	if err := held.close(); err != nil {
		t.Errorf("its end: %v", err)
	}
	k.serving.Wait()
	if n := descriptors(t); n != before-2 {
		t.Errorf("%d descriptors are open, %d before, of which 2 were the connection", n, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	return len(all)
}
