package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ras"
	"github.com/inferscope/inferscope/internal/recording"
)

const (
	// rasTimeout is how long a recording waits for NCCL's RAS, which gathers from all ranks of a job.
	rasTimeout = 2 * time.Second
	// rasEvery is how old an answer may be that is used again: recordings may be made once a second.
	rasEvery = 5 * time.Second
)

// rasReader asks NCCL's RAS for targets that have NCCL mapped.
type rasReader struct {
	read    func(ctx context.Context, address string) (*recording.RAS, error)
	reaches func(pid uint32) bool // whether a process has the daemon's loopback
	clock   clockFunc
	log     *zap.Logger

	mu    sync.Mutex
	cache map[string]rasAnswer // by address
}

type rasAnswer struct {
	at  uint64 // ns
	ras *recording.RAS
}

func newRASReader(log *zap.Logger, clock clockFunc) *rasReader {
	return &rasReader{read: ras.Read, reaches: sameNetwork, clock: clock, log: log, cache: map[string]rasAnswer{}}
}

// of returns what RAS reports about the communicators in which a target has ranks; nil if it does not answer or has
// none. Other jobs of the host are not shown to the target's owner.
func (r *rasReader) of(ctx context.Context, v *view) *recording.RAS {
	i := slices.IndexFunc(v.libraries, func(l recording.Library) bool {
		return strings.HasPrefix(filepath.Base(l.Path), "libnccl") && v.has(l.PID)
	})
	if i < 0 || v.ended != 0 {
		return nil
	}
	address := ras.Address
	if own, set, err := proc.Variable(v.libraries[i].PID, "NCCL_RAS_ADDR"); err == nil && set {
		address = own
	}
	if !loopback(address) || !r.reaches(v.libraries[i].PID) {
		return nil
	}
	all := r.ask(ctx, address)
	if all == nil {
		return nil
	}
	own := map[uint32]bool{}
	for _, p := range v.processes(r.clock()) {
		own[p.PID] = true
		own[p.NSPID] = p.NSPID != 0
	}
	ours := func(c recording.RASCommunicator) bool {
		isOwn := func(x recording.RASRank) bool { return own[x.PID] }
		return slices.ContainsFunc(c.Ranks, isOwn) || slices.ContainsFunc(c.Missing, isOwn)
	}
	out := *all
	out.Communicators = slices.DeleteFunc(slices.Clone(all.Communicators),
		func(c recording.RASCommunicator) bool { return !ours(c) })
	if len(out.Communicators) == 0 {
		return nil
	}
	return &out
}

// loopback reports whether an address is on this host's loopback. A target chooses the address, so the daemon connects
// to no other host on its behalf.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "" || host == "localhost" || net.ParseIP(host).IsLoopback())
}

// sameNetwork reports whether a process shares the daemon's network namespace.
func sameNetwork(pid uint32) bool {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return false
	}
	ours, err := os.Readlink("/proc/self/ns/net")
	return err == nil && ours == theirs
}

// ask returns an answer that is recent enough; nil if there is none. A slow answer delays only those who wait for it.
func (r *rasReader) ask(ctx context.Context, address string) *recording.RAS {
	r.mu.Lock()
	last, ok := r.cache[address]
	r.mu.Unlock()
	if ok && r.clock() < last.at+uint64(rasEvery) {
		return last.ras
	}
	ctx, cancel := context.WithTimeout(ctx, rasTimeout)
	defer cancel()
	at := r.clock()
	answer, err := r.read(ctx, address)
	if err != nil {
		r.log.Debug("NCCL's RAS did not answer", zap.String("address", address), zap.Error(err))
	} else {
		answer.At = at
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) > maxAddresses {
		clear(r.cache)
	}
	r.cache[address] = rasAnswer{at, answer}
	return answer
}

// maxAddresses bounds how many answers are kept.
const maxAddresses = 64
