package cudaapi

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/helper"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// HelperArgument is the first argument of a helper process that reads communicators.
const HelperArgument = "communicator-helper"

const (
	helperTimeout = 2 * time.Second
	maxMapsLine   = 64 << 10
)

// commQuestion is what a helper reads of a process: at each address, and from hashBytes before each offset from there.
type commQuestion struct {
	PID                uint32
	Offsets, Addresses []uint64
}

// commAnswer is what it finds.
type commAnswer struct {
	PID                    uint32
	Address, Offset, Magic uint64
	Member                 []byte
}

// commReader answers questions, as far as it can. It may take for ever.
type commReader func([]commQuestion) []commAnswer

// helperReader returns what lets helpers read, which command starts.
//
// A target may have its memory served by a program of its own (userfaultfd, FUSE), or swapped out. Who reads it then
// waits for as long as that program likes, with FUSE even after SIGKILL, and keeps all its descriptors open. A process
// of its own has none that anybody waits for.
func helperReader(command []string) commReader {
	return func(q []commQuestion) (out []commAnswer) {
		text, err := json.Marshal(q)
		if err != nil {
			return nil
		}
		args := slices.Concat(command[1:], []string{HelperArgument, string(text)})
		cmd := exec.Command(command[0], args...) //nolint:noctx // it ends by itself, or not at all
		helper.Ranks.Give(cmd)
		said, err := cmd.Output()
		if err != nil || json.Unmarshal(said, &out) != nil {
			return nil
		}
		return out
	}
}

// RunHelper is the whole of a helper process: it writes what it reads to its standard output.
func RunHelper(args []string) error {
	if len(args) != 1 {
		return errors.New("inferscoped starts this itself; there is nothing to be had from it")
	}
	time.AfterFunc(helperTimeout, func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }) // FUSE waits on
	helper.Ranks.Take()
	var questions []commQuestion
	if err := json.Unmarshal([]byte(args[0]), &questions); err != nil {
		return fmt.Errorf("what to read: %w", err)
	}
	var answers []commAnswer
	for i := range questions {
		answers = append(answers, questions[i].read()...)
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

func (q *commQuestion) read() (out []commAnswer) {
	private, err := privateMemory(q.PID)
	if err != nil {
		return nil
	}
	for _, address := range q.Addresses {
		for _, offset := range q.Offsets {
			if a := (commAnswer{PID: q.PID, Address: address, Offset: offset}); a.read(private) {
				out = append(out, a)
			}
		}
	}
	return out
}

// read reads what a communicator at an address has at an offset.
func (a *commAnswer) read(private []span) bool {
	member := span{a.Address + a.Offset - hashBytes, memberBytes}
	magic := span{a.Address, hashBytes}
	if !magic.within(private) || !member.within(private) {
		return false
	}
	var first [hashBytes]byte
	a.Member = make([]byte, memberBytes)
	local := []unix.Iovec{{Base: &first[0]}, {Base: &a.Member[0]}}
	local[0].SetLen(len(first))
	local[1].SetLen(memberBytes)
	remote := []unix.RemoteIovec{
		{Base: uintptr(magic.start), Len: len(first)}, {Base: uintptr(member.start), Len: memberBytes},
	}
	n, err := unix.ProcessVMReadv(int(a.PID), local, remote, 0)
	a.Magic = binary.LittleEndian.Uint64(first[:])
	return err == nil && n == len(first)+memberBytes
}

// span is a piece of memory.
type span struct{ start, bytes uint64 }

func (s span) within(all []span) bool {
	for _, a := range all {
		if s.start >= a.start && s.start-a.start < a.bytes && s.bytes <= a.bytes-(s.start-a.start) {
			return true
		}
	}
	return false
}

// privateMemory returns the memory of a process that is of no file: no other program serves it, unless the process
// asks for that. Communicators lie there.
func privateMemory(pid uint32) ([]span, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxMapsLine)
	var out []span
	for lines.Scan() {
		m, ok := procfile.ParseMapsLine(lines.Bytes())
		name := string(m.Name)
		if !ok || m.Inode != 0 || m.Perms[3] != 'p' || name != "" && name != "[heap]" &&
			!strings.HasPrefix(name, "[anon:") {
			continue
		}
		if last := len(out) - 1; last >= 0 && out[last].start+out[last].bytes == m.Start {
			out[last].bytes += m.End - m.Start
			continue
		}
		out = append(out, span{m.Start, m.End - m.Start})
	}
	return out, lines.Err()
}
