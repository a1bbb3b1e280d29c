package columns

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Types of pages, encodings and codecs (parquet.thrift).
const (
	dataPage       = 0
	indexPage      = 1
	dictionaryPage = 2

	plain           = 0
	plainDictionary = 2
	deltaPacked     = 5
	rleDictionary   = 8

	uncompressed = 0
	zstandard    = 6
)

// page is one page, decompressed.
type page struct {
	kind     int64
	values   int
	encoding int64
	data     []byte
}

// pages reads the pages of one chunk.
type pages struct {
	rest    []byte // of the file: what is still to be read of the chunk
	codec   int32
	limit   int // bytes of a page
	inflate *zstd.Decoder
	buf     []byte // of the page read last
}

func (f *File) pages(c *chunk) (*pages, error) {
	p := &pages{rest: f.data[c.first : c.first+c.size], codec: c.codec, limit: f.limits.Page}
	switch c.codec {
	case uncompressed:
	case zstandard:
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(uint64(f.limits.Page)),
			zstd.WithDecoderMaxWindow(uint64(f.limits.Page)))
		if err != nil {
			return nil, fmt.Errorf("make a decompressor: %w", err)
		}
		p.inflate = d
	default:
		return nil, fmt.Errorf("it is compressed with codec %d: recordings use Zstandard", c.codec)
	}
	return p, nil
}

func (p *pages) close() {
	if p.inflate != nil {
		p.inflate.Close()
	}
}

// next returns the next page. Its data is valid until the call after that.
func (p *pages) next() (page, error) {
	c := &compact{b: p.rest}
	var out page
	raw, packed := int64(-1), int64(-1)
	c.structure(0, func(id int64, kind byte) bool {
		switch {
		case id == 1 && kind == compactI32:
			out.kind = c.int()
		case id == 2 && kind == compactI32:
			raw = c.int()
		case id == 3 && kind == compactI32:
			packed = c.int()
		case (id == 5 || id == 7) && kind == compactStruct: // DataPageHeader, DictionaryPageHeader
			c.pageHeader(&out)
		default:
			return false
		}
		return true
	})
	if c.err != nil {
		return out, fmt.Errorf("a page's header: %w", c.err)
	}
	if raw < 0 || raw > int64(p.limit) || packed < 0 || packed > int64(len(c.b)-c.at) || out.values < 0 {
		return out, fmt.Errorf("a page claims %d bytes, %d decompressed: %d are there, and %d is the limit",
			packed, raw, len(c.b)-c.at, p.limit)
	}
	body := c.b[c.at : c.at+int(packed)]
	p.rest = c.b[c.at+int(packed):]
	var err error
	out.data, err = p.unpack(body, int(raw))
	return out, err
}

// pageHeader takes what both headers have alike: how many values, and how they are encoded.
func (c *compact) pageHeader(out *page) {
	c.structure(1, func(id int64, kind byte) bool {
		switch {
		case id == 1 && kind == compactI32:
			out.values = int(c.int())
		case id == 2 && kind == compactI32:
			out.encoding = c.int()
		default:
			return false
		}
		return true
	})
}

// unpack decompresses exactly size bytes, and never more.
func (p *pages) unpack(body []byte, size int) ([]byte, error) {
	if p.codec == uncompressed {
		if len(body) != size {
			return nil, fmt.Errorf("an uncompressed page has %d bytes instead of %d", len(body), size)
		}
		return body, nil
	}
	if err := p.inflate.Reset(bytes.NewReader(body)); err != nil {
		return nil, fmt.Errorf("decompress a page: %w", err)
	}
	if cap(p.buf) < size {
		p.buf = make([]byte, size)
	}
	p.buf = p.buf[:size]
	if _, err := io.ReadFull(p.inflate, p.buf); err != nil {
		return nil, fmt.Errorf("decompress a page of %d bytes: %w", size, err)
	}
	var more [1]byte
	if n, err := p.inflate.Read(more[:]); n != 0 || !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("a page holds more than the %d bytes that it claims (%w)", size, err)
	}
	return p.buf, nil
}
