package profile

import (
	"hash/maphash"
	"unsafe"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// maxStacks bounds the stacks of the unwinder that are remembered, on either side of
// the wire: 600 bytes each with 60 frames.
const maxStacks = 4096

// stackCache caches stacks by the frames that the library's programs wrote: file id and offset, so that processes share
// entries. Keys are 64-bit hashes with a secret seed: a target cannot construct collisions, and 4,096 keys are too few
// for one to happen by chance.
type stackCache struct {
	seed  maphash.Seed
	known map[uint64]*unwound
}

func newStackCache() stackCache {
	return stackCache{seed: maphash.MakeSeed(), known: map[uint64]*unwound{}}
}

func (c *stackCache) key(frames []uint64) uint64 {
	if len(frames) == 0 {
		return 0
	}
	return maphash.Bytes(c.seed, unsafe.Slice((*byte)(unsafe.Pointer(&frames[0])), len(frames)*8))
}

func (c *stackCache) keep(key uint64, stack *unwound) {
	if len(c.known) >= maxStacks {
		clear(c.known)
	}
	c.known[key] = stack
}

// maxMerged bounds the merged stacks that are remembered: 64 bytes each.
const maxMerged = 1 << 13

// mergedKey is what a merged stack was made of.
type mergedKey struct {
	stack *unwound
	hash  uint64 // of the process, its Python frames and the kernel's
}

// merged is a stack in the table.
type merged struct {
	number uint64
	origin event.StackOrigin
}

// mergedCache caches merged stacks until something is learned that changes their meaning.
type mergedCache struct {
	seed  maphash.Seed
	epoch uint64
	known map[mergedKey]merged
}

func newMergedCache() mergedCache {
	return mergedCache{seed: maphash.MakeSeed(), known: map[mergedKey]merged{}}
}

// hash hashes the parts of a sample that the unwinder did not write. It is never 0.
func (c *mergedCache) hash(r *raw) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	var collects uint32
	if r.collects {
		collects = 1
	}
	maphash.WriteComparable(&h, [4]uint32{r.pid, uint32(r.walk), uint32(len(r.kernel)), collects})
	_, _ = h.Write(r.stack) // it cannot fail
	return max(1, h.Sum64())
}

// at forgets all that was made before epoch.
func (c *mergedCache) at(epoch uint64) {
	if c.epoch != epoch {
		clear(c.known)
		c.epoch = epoch
	}
}

func (c *mergedCache) keep(k mergedKey, m merged) {
	if len(c.known) >= maxMerged {
		clear(c.known)
	}
	c.known[k] = m
}
