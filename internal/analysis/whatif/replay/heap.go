package replay

// heap orders lanes by the end of their next node.
type heap struct {
	b     *builder
	lanes []int32
}

func newHeap(b *builder) *heap {
	h := &heap{b: b}
	for i := range b.lanes {
		if len(b.lanes[i].nodes) > 0 {
			h.lanes = append(h.lanes, int32(i))
		}
	}
	for i := len(h.lanes)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
	return h
}

func (h *heap) len() int { return len(h.lanes) }

func (h *heap) top() int32 { return h.lanes[0] }

// advance is called when the next node of the first lane has been taken.
func (h *heap) advance() {
	l := &h.b.lanes[h.lanes[0]]
	if len(l.global) == len(l.nodes) {
		h.lanes[0] = h.lanes[len(h.lanes)-1]
		h.lanes = h.lanes[:len(h.lanes)-1]
	}
	h.down(0)
}

func (h *heap) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.lanes); c++ {
			if h.less(h.lanes[c], h.lanes[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.lanes[i], h.lanes[least] = h.lanes[least], h.lanes[i]
		i = least
	}
}

func (h *heap) less(x, y int32) bool {
	a, b := &h.b.lanes[x], &h.b.lanes[y]
	n, m := &a.nodes[len(a.global)], &b.nodes[len(b.global)]
	if n.at != m.at {
		return n.at < m.at
	}
	if p, q := h.rank(a, n), h.rank(b, m); p != q {
		return p < q
	}
	return x < y
}

func (h *heap) rank(l *lane, n *node) int {
	switch {
	case !l.thread:
		return 0
	case h.b.g.Whats[n.what].Kind != Wait:
		return 1
	}
	return 2
}
