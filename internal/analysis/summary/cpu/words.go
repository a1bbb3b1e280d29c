package cpu

// word is a number for a string; 0 is "". Rows are told apart by numbers: there can be
// a million waits, and hashing a number costs a tenth of hashing a name.
type word uint32

// words numbers strings.
type words struct {
	numbers map[string]word
	list    []string
}

func newWords() *words { return &words{numbers: map[string]word{"": 0}, list: []string{""}} }

func (w *words) number(s string) word {
	n, ok := w.numbers[s]
	if !ok {
		n = word(len(w.list))
		w.numbers[s] = n
		w.list = append(w.list, s)
	}
	return n
}

func (w *words) text(n word) string { return w.list[n] }

// tally counts by word.
type tally struct {
	count map[word]uint64
	all   uint64
}

func (t *tally) add(name word, n uint64) {
	if t.count == nil {
		t.count = map[word]uint64{}
	}
	t.count[name] += n
	t.all += n
}

// most returns the word with the highest count; of equals the first by name, and one
// that says something before one that does not.
func (t *tally) most(w *words) word {
	best := word(0)
	for name, n := range t.count {
		switch {
		case name == 0:
		case best == 0, n > t.count[best], n == t.count[best] && w.text(name) < w.text(best):
			best = name
		}
	}
	return best
}
