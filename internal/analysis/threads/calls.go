package threads

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// The system calls by number, "0 read", as golang.org/x/sys v0.49.0 lists them. A
// recording is read on any machine, so both tables are in every build.
var (
	//go:embed calls_amd64.txt
	callsAMD64 string
	//go:embed calls_arm64.txt
	callsARM64 string
)

// calls names the system calls of a recording's machine.
type calls map[uint16]string

// callsOf returns the table for a GOARCH; an empty one for an architecture that no daemon runs on.
func callsOf(arch string) calls {
	text := map[string]string{"amd64": callsAMD64, "arm64": callsARM64}[arch]
	table := calls{}
	for line := range strings.Lines(text) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if nr, err := strconv.ParseUint(number, 10, 16); err == nil {
			table[uint16(nr)] = name
		}
	}
	return table
}

// compatCall is in the number of a call of a 32-bit program: OFFCPU_COMPAT of bpf/event.h.
const compatCall = 0x4000

// name returns the name of a call, "" for none, and "call 1234" for one that is not known.
func (c calls) name(nr uint16) string {
	if nr >= event.Stopped {
		return ""
	}
	if nr&compatCall != 0 {
		return "32-bit call " + strconv.Itoa(int(nr&^compatCall))
	}
	if name := c[nr]; name != "" {
		return name
	}
	return "call " + strconv.Itoa(int(nr))
}
