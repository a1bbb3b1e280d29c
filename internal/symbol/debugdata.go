package symbol

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/therootcompany/xz"
)

// Limits on .gnu_debugdata.
const (
	maxPacked     = 16 << 20 // bytes
	maxUnpacked   = 32 << 20 // bytes
	maxDictionary = 16 << 20 // bytes; xz asks for 8 MiB if not told otherwise, and a file could ask for 4 GiB
)

var errPacked = errors.New("damaged .gnu_debugdata")

// unpack undoes xz.
func unpack(packed []byte) (plain []byte, err error) {
	// The library decodes what a target wrote; it is fuzzed, but not by us.
	defer func() {
		if r := recover(); r != nil {
			plain, err = nil, fmt.Errorf("%w: %v", errPacked, r)
		}
	}()
	r, err := xz.NewReader(bytes.NewReader(packed), maxDictionary)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPacked, err)
	}
	plain, err = io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPacked, err)
	}
	if len(plain) > maxUnpacked {
		return nil, fmt.Errorf("%w: more than %d bytes", errPacked, maxUnpacked)
	}
	return plain, nil
}
