package symbol

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// Limits on .gnu_debugdata.
const (
	maxPacked   = 16 << 20 // bytes
	maxUnpacked = 32 << 20 // bytes
	// xz begins one after 64 KiB of input or output at the earliest, and each may cost a new state of 28 kB
	maxChunks = 4096
)

var errPacked = errors.New("damaged .gnu_debugdata")

// unpack undoes xz. The container is read here, so that the decoder gets nothing whose cost is not known: the sizes of
// all chunks of a block are in their headers, and with them the memory that it takes. The format: The .xz File Format
// 1.2.1.
func unpack(packed []byte) (plain []byte, err error) {
	defer func() { // the decoder of LZMA is not ours, and a target wrote what it reads
		if r := recover(); r != nil {
			plain, err = nil, fmt.Errorf("%w: %v", errPacked, r)
		}
	}()
	in := &packedReader{left: packed, chunks: maxChunks}
	check, err := in.streamHeader()
	if err != nil {
		return nil, err
	}
	for {
		b, err := in.block(maxUnpacked - len(plain))
		if err != nil || b == nil {
			return plain, err // what comes after the blocks repeats their sizes
		}
		start := len(plain)
		if plain, err = b.decode(plain); err != nil {
			return nil, err
		}
		if err := in.check(check, plain[start:]); err != nil {
			return nil, err
		}
	}
}

// packedReader reads a .xz stream.
type packedReader struct {
	left   []byte
	at     int // of left in the stream
	chunks int // how many more there may be
}

// packedBlock is a block of a stream.
type packedBlock struct {
	data       []byte // LZMA2 chunks with the one that ends them
	size       int    // unpacked
	dictionary int    // bytes
}

// take returns the next n bytes.
func (r *packedReader) take(n int) ([]byte, error) {
	if n > len(r.left) {
		return nil, fmt.Errorf("%w: it ends early", errPacked)
	}
	b := r.left[:n]
	r.left = r.left[n:]
	r.at += n
	return b, nil
}

// summed takes n bytes and the CRC-32 of them that follows.
func (r *packedReader) summed(n int) ([]byte, error) {
	b, err := r.take(n + 4)
	if err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, fmt.Errorf("%w: the checksum of a header is wrong", errPacked)
	}
	return b[:n], nil
}

// streamHeader returns the kind of check that follows each block.
func (r *packedReader) streamHeader() (check byte, err error) {
	magic, err := r.take(6)
	if err != nil || string(magic) != "\xfd7zXZ\x00" {
		return 0, fmt.Errorf("%w: it is no xz stream", errPacked)
	}
	flags, err := r.summed(2)
	if err != nil {
		return 0, err
	}
	if flags[0] != 0 {
		return 0, fmt.Errorf("%w: unknown flags", errPacked)
	}
	return flags[1], nil
}

// block reads the header of a block and walks over its chunks; nil where there are no more.
func (r *packedReader) block(limit int) (*packedBlock, error) {
	if len(r.left) > 0 && r.left[0] == 0 {
		return nil, nil
	}
	if len(r.left) == 0 {
		return nil, fmt.Errorf("%w: it ends early", errPacked)
	}
	header, err := r.summed(4 * int(r.left[0]))
	if err != nil {
		return nil, err
	}
	b := &packedBlock{}
	if b.dictionary, err = dictionaryOf(header); err != nil {
		return nil, err
	}
	rest := r.left
	for ended := false; !ended; {
		var n int
		if n, ended, err = r.chunk(); err != nil {
			return nil, err
		}
		if b.size += n; b.size > limit {
			return nil, fmt.Errorf("%w: more than %d bytes", errPacked, maxUnpacked)
		}
	}
	b.data = rest[:len(rest)-len(r.left)]
	if _, err := r.take(-r.at & 3); err != nil { // padding
		return nil, err
	}
	return b, nil
}

// dictionaryOf returns the size of the dictionary that a block's header asks for. The only filter may be LZMA2.
func dictionaryOf(header []byte) (int, error) {
	flags, rest := header[1], header[2:]
	for _, present := range []byte{0x40, 0x80} { // packed and unpacked size, which the chunks tell too
		if flags&present != 0 {
			_, n := binary.Uvarint(rest)
			if n <= 0 {
				return 0, fmt.Errorf("%w: header of a block", errPacked)
			}
			rest = rest[n:]
		}
	}
	if flags&0x3f != 0 || len(rest) < 3 || rest[0] != 0x21 || rest[1] != 1 || rest[2] > 40 {
		return 0, fmt.Errorf("%w: a filter that is not supported", errPacked)
	}
	bits := rest[2]
	return int(
		min(uint64(2|bits&1)<<(bits/2+11), maxUnpacked),
	), nil // a dictionary is not larger than what it was made of
}

// chunk walks over an LZMA2 chunk and returns how many bytes it unpacks to, and whether it ends the block.
func (r *packedReader) chunk() (size int, last bool, err error) {
	if r.chunks--; r.chunks < 0 {
		return 0, false, fmt.Errorf("%w: more than %d chunks", errPacked, maxChunks)
	}
	head, err := r.take(1)
	if err != nil {
		return 0, false, err
	}
	control := head[0]
	switch {
	case control == 0:
		return 0, true, nil
	case control <= 2: // stored
		if head, err = r.take(2); err != nil {
			return 0, false, err
		}
		size = int(binary.BigEndian.Uint16(head)) + 1
		_, err = r.take(size)
		return size, false, err
	case control < 0x80:
		return 0, false, fmt.Errorf("%w: unknown kind of chunk", errPacked)
	}
	if head, err = r.take(4); err != nil {
		return 0, false, err
	}
	size = int(control&0x1f)<<16 + int(binary.BigEndian.Uint16(head)) + 1
	if control >= 0xc0 { // new properties: pb, lp and lc in one byte
		p, err := r.take(1)
		if err != nil {
			return 0, false, err
		}
		if lc, lp := p[0]%9, p[0]/9%5; p[0] >= 225 || lc+lp > 4 {
			return 0, false, fmt.Errorf("%w: properties that LZMA2 does not allow", errPacked)
		}
	}
	_, err = r.take(int(binary.BigEndian.Uint16(head[2:])) + 1)
	return size, false, err
}

// decode appends what a block unpacks to.
func (b *packedBlock) decode(plain []byte) ([]byte, error) {
	in := bytes.NewReader(b.data)
	r, err := lzma.Reader2Config{DictCap: max(min(b.dictionary, b.size), lzma.MinDictCap)}.NewReader2(in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPacked, err)
	}
	start := len(plain)
	plain = append(plain, make([]byte, b.size)...)
	if _, err := io.ReadFull(r, plain[start:]); err != nil && b.size > 0 {
		return nil, fmt.Errorf("%w: %w", errPacked, err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) || in.Len() != 0 {
		return nil, fmt.Errorf("%w: a block does not end where its chunks do", errPacked)
	}
	return plain, nil
}

// check takes the checksum of a block and compares it.
func (r *packedReader) check(kind byte, plain []byte) error {
	var sum hash.Hash
	switch kind {
	case 0:
		return nil
	case 1:
		sum = crc32.NewIEEE()
	case 4:
		sum = crc64.New(crc64.MakeTable(crc64.ECMA))
	case 10:
		sum = sha256.New()
	default:
		return fmt.Errorf("%w: unknown kind of checksum", errPacked)
	}
	want, err := r.take(sum.Size())
	if err != nil {
		return err
	}
	sum.Write(plain)
	got := sum.Sum(nil)
	if kind != 10 { // CRCs are in little-endian order
		for i, j := 0, len(got)-1; i < j; i, j = i+1, j-1 {
			got[i], got[j] = got[j], got[i]
		}
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: its checksum is wrong", errPacked)
	}
	return nil
}
