package columns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// bitReader reads values of some bits each, the lowest bit first, as RLE and DELTA pack them.
type bitReader struct {
	b    []byte
	at   int
	have uint   // bits in held
	held uint64 // read, not taken yet
}

// take returns the next n bits, n at most 64. What lies behind the end reads as 0: callers check lengths before.
func (r *bitReader) take(n uint) uint64 {
	if n > 32 {
		low := r.take(32)
		return low | r.take(n-32)<<32
	}
	for r.have < n {
		var next uint64
		if r.at < len(r.b) {
			next = uint64(r.b[r.at])
		}
		r.at++
		r.held |= next << r.have
		r.have += 8
	}
	v := r.held & (1<<n - 1)
	r.held >>= n
	r.have -= n
	return v
}

// deltas decodes DELTA_BINARY_PACKED (Encodings.md) of exactly len(out) values of a width of 32 or 64 bits.
func deltas(b []byte, out []uint64, width uint) error {
	c := &compact{b: b}
	block, minis, total := c.uvarint(), c.uvarint(), c.uvarint()
	value := uint64(c.int())
	if c.err != nil {
		return c.err
	}
	if total != uint64(len(out)) {
		return fmt.Errorf("a page of deltas holds %d values instead of %d", total, len(out))
	}
	if block == 0 || block > 1<<16 || block%128 != 0 || minis == 0 || minis > block/32 || block/minis%32 != 0 {
		return fmt.Errorf("a page of deltas has blocks of %d values in %d parts", block, minis)
	}
	mask := uint64(1)<<(width-1)<<1 - 1
	if len(out) > 0 {
		out[0] = value & mask
	}
	for at := 1; at < len(out); {
		least := uint64(c.int())
		widths := c.part(int(minis))
		if c.err != nil {
			return c.err
		}
		for _, w := range widths {
			if at >= len(out) {
				break // parts that hold nothing have no bytes
			}
			if w > 64 {
				return fmt.Errorf("deltas of %d bits do not exist", w)
			}
			r := bitReader{b: c.part(int(block / minis * uint64(w) / 8))}
			if c.err != nil {
				return c.err
			}
			for range min(int(block/minis), len(out)-at) {
				value += least + r.take(uint(w))
				out[at] = value & mask
				at++
			}
		}
	}
	return nil
}

// part returns the next n bytes.
func (c *compact) part(n int) []byte {
	if n > len(c.b)-c.at {
		c.fail(errShort)
		return nil
	}
	c.at += n
	return c.b[c.at-n : c.at]
}

// indexes decodes the indexes of a dictionary page of n entries (RLE_DICTIONARY: a byte that says how many
// bits an index has, then runs and bit-packed groups) into exactly len(out) values below n.
func indexes(b []byte, out []uint64, n int) error {
	if len(out) == 0 {
		return nil
	}
	if len(b) == 0 {
		return errShort
	}
	width := uint(b[0])
	if width > 32 {
		return fmt.Errorf("indexes of %d bits do not exist", width)
	}
	c := &compact{b: b, at: 1}
	for at := 0; at < len(out); {
		head := c.uvarint()
		if c.err != nil {
			return c.err
		}
		count := int(min(head>>1, uint64(len(out)-at)))
		if head&1 == 0 {
			r := bitReader{b: c.part(int(width+7) / 8)}
			v := r.take(width)
			for i := range count {
				out[at+i] = v
			}
		} else {
			count = c.packed(head>>1, width, out[at:])
		}
		if c.err != nil {
			return c.err
		}
		if count == 0 {
			return errors.New("a run of indexes is empty")
		}
		at += count
	}
	for _, v := range out {
		if v >= uint64(n) {
			return fmt.Errorf("index %d points behind a dictionary of %d", v, n)
		}
	}
	return nil
}

// packed reads groups of 8 bit-packed indexes; the last group may be cut off at the end of the page.
func (c *compact) packed(groups uint64, width uint, out []uint64) int {
	hi, size := bits.Mul64(groups, uint64(width))
	if left := uint64(len(c.b) - c.at); hi != 0 || size > left {
		size = left
	}
	count := int(min(groups, uint64(len(out)))) * 8
	count = min(count, len(out))
	if width > 0 {
		count = min(count, int(size*8/uint64(width)))
	}
	r := bitReader{b: c.part(int(size))}
	for i := range count {
		out[i] = r.take(width)
	}
	return count
}

// plainInts decodes PLAIN integers of a size in bytes, 4 or 8.
func plainInts(b []byte, out []uint64, size int) error {
	if len(b) != size*len(out) {
		return fmt.Errorf("%d bytes do not hold %d values of %d bytes", len(b), len(out), size)
	}
	for i := range out {
		if size == 4 {
			out[i] = uint64(binary.LittleEndian.Uint32(b[4*i:]))
		} else {
			out[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
	}
	return nil
}

// plainBools decodes PLAIN booleans, a bit each.
func plainBools(b []byte, out []uint64) error {
	if len(b) != (len(out)+7)/8 {
		return fmt.Errorf("%d bytes do not hold %d bits", len(b), len(out))
	}
	for i := range out {
		out[i] = uint64(b[i/8]>>(i%8)) & 1
	}
	return nil
}

// plainStrings decodes PLAIN byte arrays, each after its length.
func plainStrings(b []byte, out []string) error {
	for i := range out {
		if len(b) < 4 {
			return errShort
		}
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		if uint64(n) > uint64(len(b)) {
			return errShort
		}
		out[i] = string(b[:n])
		b = b[n:]
	}
	if len(b) > 0 {
		return fmt.Errorf("%d bytes are left over after a page of strings", len(b))
	}
	return nil
}
