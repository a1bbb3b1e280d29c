package profile

import "github.com/inferscope/inferscope/internal/recording"

// Stacks returns the stacks with these numbers (Args[0] of Sample events), named, as one tree, and for each number
// its index + 1 in the tree. A number that is missing there has no stack any more. Numbers are not indexes, so that
// they stay unique for as long as the daemon runs, while a recording carries only the stacks of its own samples:
// those of another target never get into it.
func (s *Source) Stacks(numbers []uint64) ([]recording.Frame, []recording.Node, map[uint64]uint64) {
	p := s.table.pick(numbers)
	return p.named(s.namer.rows(p.frames))
}

// named makes one frame of those that have one name: addresses of one function, say.
func (p *picked) named(rows []recording.Frame) ([]recording.Frame, []recording.Node, map[uint64]uint64) {
	var frames []recording.Frame
	frameAt := make(map[recording.Frame]uint32, len(rows))
	renamed := make([]uint32, len(rows))
	for i, row := range rows {
		k, ok := frameAt[row]
		if !ok {
			k = uint32(len(frames))
			frames = append(frames, row)
			frameAt[row] = k
		}
		renamed[i] = k
	}
	var nodes []recording.Node
	nodeAt := make(map[recording.Node]int32, len(p.nodes))
	moved := make([]int32, len(p.nodes))
	for i, node := range p.nodes { // parents stand before their children
		node.Frame = renamed[node.Frame]
		if node.Parent >= 0 {
			node.Parent = moved[node.Parent]
		}
		n, ok := nodeAt[node]
		if !ok {
			n = int32(len(nodes))
			nodes = append(nodes, node)
			nodeAt[node] = n
		}
		moved[i] = n
	}
	at := make(map[uint64]uint64, len(p.at))
	for number, index := range p.at {
		at[number] = uint64(moved[index-1]) + 1
	}
	return frames, nodes, at
}
