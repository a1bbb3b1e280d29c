// Package ras asks NCCL's RAS subsystem (2.24 and newer) what it knows of a job: which ranks it reaches, and how many
// operations each has launched. Each process of a job listens on a port of the loopback for that, and any of them
// answers for all. What it says is not trusted: another program may hold the port.
package ras

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// Address is where processes listen by default (NCCL_RAS_ADDR of the NCCL environment variables).
const Address = "localhost:28028"

const (
	maxAnswer        = 8 << 20 // bytes of an answer
	maxLine          = 1 << 10 // of one line of the handshake
	maxCommunicators = 1024
	maxRanks         = 1 << 14 // of all communicators together
)

// Read returns what RAS says of the job that listens at an address. It ends with ctx, whose deadline bounds it. Where
// nobody listens the error is a *net.OpError.
func Read(ctx context.Context, address string) (*recording.RAS, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to NCCL's RAS: %w", err)
	}
	defer func() { _ = c.Close() }() // nothing more is wanted of it
	if at, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(at); err != nil {
			return nil, fmt.Errorf("connect to NCCL's RAS: %w", err)
		}
	}
	r := bufio.NewReaderSize(c, maxLine)
	isJSON, err := handshake(c, r)
	if err != nil {
		return nil, fmt.Errorf("talk to NCCL's RAS at %s: %w", address, err)
	}
	if _, err := io.WriteString(c, "verbose status\n"); err != nil {
		return nil, fmt.Errorf("ask NCCL's RAS at %s: %w", address, err)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of NCCL's RAS at %s: %w", address, err)
	case len(text) > maxAnswer:
		return nil, fmt.Errorf("the answer of NCCL's RAS at %s is longer than %d bytes", address, maxAnswer)
	case isJSON:
		return fromJSON(text)
	}
	return fromText(string(text))
}

// handshake asks for JSON, which 2.28.7 and newer have, and reports whether it will come.
func handshake(w io.Writer, r *bufio.Reader) (isJSON bool, err error) {
	// A rank that does not answer others holds the answer up for so many seconds.
	if _, err := io.WriteString(w, "client protocol 2\ntimeout 1\nset format json\n"); err != nil {
		return false, err
	}
	for i, want := range []string{"SERVER PROTOCOL ", "OK", "OK"} {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return false, err
		}
		if text := strings.TrimSpace(string(line)); !strings.HasPrefix(text, want) {
			if i == 2 && strings.HasPrefix(text, "ERROR: ") {
				return false, nil
			}
			return false, fmt.Errorf("unexpected answer %.80q", text)
		}
	}
	return true, nil
}

// document is the JSON that RAS writes (rasDumpCommsToJSON of src/ras/client_support.cc, 2.28.9 to 2.30).
type document struct {
	Version       string `json:"nccl_version"`
	Communicators []struct {
		Hash    string `json:"hash"`
		Size    int    `json:"size"`
		Ranks   []rank `json:"ranks"`
		Missing []rank `json:"missing_ranks"`
	} `json:"communicators"`
}

type rank struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    uint32 `json:"pid"`
	Device int    `json:"cuda_dev"`
	Status struct {
		AsyncError int  `json:"async_error"`
		Dead       bool `json:"considered_dead"`
	} `json:"status"`
	Counts map[string]uint64 `json:"collective_counts"`
}

func (r *rank) row() recording.RASRank {
	return recording.RASRank{
		Rank: r.Rank, Host: r.Host, PID: r.PID, GPU: r.Device, Counts: r.Counts, Dead: r.Status.Dead,
		Error: r.Status.AsyncError,
	}
}

func fromJSON(text []byte) (*recording.RAS, error) {
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("read the JSON of NCCL's RAS: %w", err)
	}
	out, ranks := &recording.RAS{Version: d.Version}, 0
	for _, c := range d.Communicators {
		ranks += len(c.Ranks) + len(c.Missing)
		if len(out.Communicators) == maxCommunicators || ranks > maxRanks {
			return nil, errors.New("NCCL's RAS tells of more communicators or ranks than any job has")
		}
		one := recording.RASCommunicator{Hash: strings.TrimPrefix(c.Hash, "0x"), Size: c.Size}
		for i := range c.Ranks {
			one.Ranks = append(one.Ranks, c.Ranks[i].row())
		}
		for i := range c.Missing {
			one.Missing = append(one.Missing, c.Missing[i].row())
		}
		out.Communicators = append(out.Communicators, one)
	}
	return out, nil
}
