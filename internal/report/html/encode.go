package html

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/inferscope/inferscope/internal/format"
)

// columns writes numbers as LEB128 varints, one kind after the other: so they compress best.
type columns struct{ b []byte }

func (c *columns) put(n uint64) { c.b = binary.AppendUvarint(c.b, n) }

// signed writes a number that may be below 0, as Protocol Buffers' zigzag does.
func (c *columns) signed(n int64) { c.put(uint64(n<<1) ^ uint64(n>>63)) }

// units turns ns after the beginning of the window into units of the page.
type units struct{ from, quantum uint64 }

func (u units) at(ts uint64) int64 { return int64((ts - min(ts, u.from)) / u.quantum) }

// minQuantum is the finest unit of time of a page, ns: the records of GPUs are no finer.
const minQuantum = 32

// quantumOf keeps times of a page below 2^31 units, so that they can be kept as 32-bit numbers.
func quantumOf(length uint64) uint64 {
	q := uint64(minQuantum)
	for length/q >= 1<<31 {
		q *= 2
	}
	return q
}

// numbering gives the items of all tracks one numbering, by which one leads to another.
type numbering struct {
	byOp map[int32]int64 // of calls that are drawn as they were recorded
	next int64
}

func (n *numbering) number(list []drawn) {
	for i := range list {
		if d := &list[i]; d.count == 0 && d.src != none {
			n.byOp[d.src] = n.next + int64(i)
		}
	}
	n.next += int64(len(list))
}

// addTracks writes the items of tracks: for each of them starts, lengths, labels, counts, and what else there is.
// web/src/data.js reads it.
func (c *columns) addTracks(u units, tracks [][]drawn) {
	n := &numbering{byOp: map[int32]int64{}}
	for _, list := range tracks {
		n.number(list)
	}
	for _, list := range tracks {
		c.addTrack(u, list, n)
	}
}

func (c *columns) addTrack(u units, list []drawn, n *numbering) {
	last := int64(0)
	for i := range list {
		start := u.at(list[i].start)
		c.signed(start - last)
		last = u.at(list[i].end)
	}
	for i := range list {
		c.put(uint64(u.at(list[i].end) - u.at(list[i].start)))
	}
	for i := range list {
		c.put(uint64(list[i].label))
	}
	for i := range list {
		c.put(uint64(list[i].count))
	}
	was := int64(0)
	for i := range list {
		d := &list[i]
		switch to, leads := n.leads(d); {
		case d.count > 0:
			c.put(uint64(d.fill))
		case !leads:
			c.put(0)
		default:
			step := to - was
			c.put(uint64(step<<1) ^ uint64(step>>63) + 1)
			was = to
		}
	}
}

// leads returns where an item leads: GPU work to the number of its call, a wait to the number of a thread.
func (n *numbering) leads(d *drawn) (to int64, ok bool) {
	if d.ref == none {
		return 0, false
	}
	if d.wait {
		return int64(d.ref), true
	}
	to, ok = n.byOp[d.ref]
	return to, ok
}

// pack makes the block of a page: the length of the document, the document as JSON, the columns; all of it
// compressed (RFC 1951) and in base64.
func pack(doc *document, c *columns) (string, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return "", fmt.Errorf("encode the data of the page: %w", err)
	}
	text = []byte(format.Printable(string(text))) // what is to be seen of JSON is printable
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.DefaultCompression)
	if err != nil {
		return "", fmt.Errorf("compress the data of the page: %w", err)
	}
	var size [4]byte
	binary.LittleEndian.PutUint32(size[:], uint32(len(text)))
	for _, part := range [][]byte{size[:], text, c.b} {
		if _, err := w.Write(part); err != nil {
			return "", fmt.Errorf("compress the data of the page: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("compress the data of the page: %w", err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes()), nil
}
