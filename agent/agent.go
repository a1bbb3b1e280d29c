// Package agent holds the code that is injected into a process to record its GPU
// activity: one small shared object per architecture, made by scripts/agent.sh
// from the C files in src, and what one has to know to load it. abi.h says how the
// agent and the daemon talk.
package agent

import (
	"bytes"
	"debug/elf"
	_ "embed" // the images
	"encoding/hex"
	"errors"
	"fmt"
)

//go:embed agent_amd64.so
var amd64 []byte //nolint:gochecknoglobals // written by the linker, never changed

//go:embed agent_arm64.so
var arm64 []byte //nolint:gochecknoglobals // written by the linker, never changed

// FileName is what an image is called where a program is to load it by itself (CUDA_INJECTION64_PATH).
const FileName = "libinferscope-agent.so"

// ErrNoImage means that there is no agent for an architecture.
var ErrNoImage = errors.New("there is no agent for this architecture: GPU activity is recorded on amd64 and arm64 only")

// Image returns a copy of the agent for an architecture, as Go calls it ("amd64",
// "arm64"): an ELF shared object, to be patched at Layout.Params and loaded.
func Image(goarch string) ([]byte, error) {
	switch goarch {
	case "amd64":
		return bytes.Clone(amd64), nil
	case "arm64":
		return bytes.Clone(arm64), nil
	}
	return nil, fmt.Errorf("agent for %s: %w", goarch, ErrNoImage)
}

// cuptiBytes is the size of agent_params.cupti in abi.h, the last field.
const cuptiBytes = 480

// SetCUPTI has an image that a program loads by itself use this libcupti where the program maps none.
func SetCUPTI(image []byte, path string) error {
	if len(path) >= cuptiBytes {
		return fmt.Errorf("the path of libcupti has %d bytes, more than %d", len(path), cuptiBytes-1)
	}
	l, err := Describe(image)
	if err != nil {
		return err
	}
	field := image[l.Params+l.ParamsSize-cuptiBytes:][:cuptiBytes]
	clear(field)
	copy(field, path)
	return nil
}

// Layout describes where things are in an image.
type Layout struct {
	Params     int64  // offset in the file of struct agent_params (abi.h)
	ParamsSize int64  // bytes of it
	Start      uint64 // address of inferscope_start(int fd), from where the image is loaded
	BuildID    string // hex; the same in the ring of an agent that this image became
}

// Describe reads an image's layout out of its ELF headers and symbols.
func Describe(image []byte) (Layout, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return Layout{}, fmt.Errorf("read the agent's image: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return Layout{}, fmt.Errorf("read the symbols of the agent's image: %w", err)
	}
	var l Layout
	for _, s := range symbols {
		switch s.Name {
		case "inferscope_params":
			l.Params, l.ParamsSize = fileOffset(f, s.Value), int64(s.Size)
		case "inferscope_start":
			l.Start = s.Value
		}
	}
	l.BuildID = buildID(f)
	if l.Params <= 0 || l.Params+l.ParamsSize > int64(len(image)) || l.Start == 0 || l.BuildID == "" {
		return Layout{}, errors.New(
			"the agent's image lacks its parameters, its entry or its build id: run 'make generate'",
		)
	}
	return l, nil
}

// fileOffset returns where an address of the image lies in its file, or -1.
func fileOffset(f *elf.File, address uint64) int64 {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			return int64(address - p.Vaddr + p.Off)
		}
	}
	return -1
}

// buildID returns the description of the GNU build id note, in hex.
func buildID(f *elf.File) string {
	const header = 16 // sizes, type, and "GNU\0"
	s := f.Section(".note.gnu.build-id")
	if s == nil {
		return ""
	}
	note, err := s.Data()
	if err != nil || len(note) <= header {
		return ""
	}
	return hex.EncodeToString(note[header:])
}
