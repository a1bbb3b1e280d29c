package annotate

import (
	"strings"
	"sync"
	"unicode"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// Bounds of what is remembered of names and attributes, of all processes together (proc.Quota shares it among users).
const (
	maxTexts     = 1 << 16
	maxTextBytes = 16 << 20
)

// texts gives every name and every attributes' object a number, from 1. A number is never
// used again, because the recorder holds events that are older than the process.
type texts struct {
	mu      sync.Mutex
	numbers map[string]int32
	rows    []string
	quota   proc.Quota
}

func newTexts() *texts {
	return &texts{numbers: map[string]int32{}, quota: proc.NewQuota(maxTexts, maxTextBytes)}
}

// add returns the number of a text, for which who is charged if it is new; 0 where who has no room for another one.
func (t *texts) add(who proc.Payer, text string) int32 {
	text = clean(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.numbers[text]; ok {
		return n
	}
	if !t.quota.Take(who, len(text)) {
		return 0
	}
	t.rows = append(t.rows, text)
	n := int32(len(t.rows))
	t.numbers[text] = n
	return n
}

// row returns the text of a number; false for one that was never given.
func (t *texts) row(n int32) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n < 1 || int(n) > len(t.rows) {
		return "", false
	}
	return t.rows[n-1], true
}

// clean makes a text of the target's fit for terminals.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}
