package gpu

import (
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/format/symname"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of what is remembered of names, of all processes together (proc.Quota shares it among users). A PyTorch model
// runs some hundred kernels; their names are 50 to 2,000 bytes long.
const (
	maxNames     = 1 << 16
	maxNameBytes = 16 << 20
	maxText      = 4 << 10 // bytes of one name; the rest is cut off
)

// description is a kernel or a range as an agent described it.
type description struct {
	text                           string // as CUPTI gives it: mangled
	registers, staticShared, local uint32
}

// names gives every description a number, from 1, which events carry in Ret. A number is
// never used again, because the recorder holds events that are older than the process.
// Equal descriptions of several processes, and of agents one after another, are one.
type names struct {
	mu      sync.Mutex
	numbers map[description]int32
	rows    []description
	plain   []string // demangled, where that was asked for already
	quota   proc.Quota
}

func newNames() *names {
	return &names{numbers: map[description]int32{}, quota: proc.NewQuota(maxNames, maxNameBytes)}
}

// add returns the number of d, for which who is charged if it is new; 0 where who has no room for another one.
func (n *names) add(who proc.Payer, d description) int32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, ok := n.numbers[d]; ok {
		return i
	}
	if !n.quota.Take(who, len(d.text)) {
		return 0
	}
	n.rows = append(n.rows, d)
	n.plain = append(n.plain, "")
	i := int32(len(n.rows))
	n.numbers[d] = i
	return i
}

// demanglingTime bounds what the names of one recording may cost. A hostile name takes 56 ms,
// a real one 10 us; what is left when it is used up keeps the name that it has.
const demanglingTime = 500 * time.Millisecond

// kernels returns the rows with these numbers as a recording has them, and for each number
// its index + 1 there.
func (n *names) kernels(used []int32) (rows []recording.Kernel, at map[int32]int32) {
	at = make(map[int32]int32, len(used))
	end := time.Now().Add(demanglingTime)
	for _, i := range used {
		d, name, ok := n.row(i)
		if !ok {
			continue
		}
		if name == "" {
			name = n.demangle(i, d.text, time.Now().Before(end))
		}
		rows = append(
			rows,
			recording.Kernel{Name: name, Registers: d.registers, StaticShared: d.staticShared, Local: d.local},
		)
		at[i] = int32(len(rows))
	}
	return rows, at
}

// texts is kernels for names that need no demangling.
func (n *names) texts(used []int32) (rows []string, at map[int32]int32) {
	at = make(map[int32]int32, len(used))
	for _, i := range used {
		if d, _, ok := n.row(i); ok {
			rows = append(rows, clean(d.text, maxText))
			at[i] = int32(len(rows))
		}
	}
	return rows, at
}

func (n *names) row(i int32) (d description, plain string, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i < 1 || int(i) > len(n.rows) {
		return d, "", false
	}
	return n.rows[i-1], n.plain[i-1], true
}

// demangle makes a name for people, without the lock: it may take long.
func (n *names) demangle(i int32, text string, mayCost bool) string {
	if !mayCost {
		return clean(text, maxText)
	}
	plain := symname.Demangle(text, true)
	if plain == "" {
		plain = clean(text, maxText)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.plain[i-1] = plain
	return plain
}

// clean makes a text of the target's fit for terminals, and bounds it (bytes).
func clean(text string, most int) string {
	text = strings.ToValidUTF8(text[:min(len(text), most)], "?")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// namer puts the names of one agent together, out of an AGENT_NAME and the AGENT_TEXT
// slots behind it. It is used by one goroutine.
type namer struct {
	kernels, ranges []int32  // the agent's id -> number in the tables
	devices         []string // by the agent's id
	pending         pendingName
}

// pendingName is a name whose text has not come wholly.
type pendingName struct {
	kind uint8
	id   int32
	d    description
	left int // bytes of text to come; 0: nothing is pending
	text []byte
}

// maxID bounds the agent's numbers of names.
const maxID = maxNames

// begin takes an AGENT_NAME; false where it is none.
func (n *namer) begin(kind uint8, id int32, length int, d description) bool {
	if id < 1 || id > maxID || length < 1 || kind > nameDevice {
		return false
	}
	n.pending = pendingName{kind: kind, id: id, d: d, left: length, text: n.pending.text[:0]}
	return true
}

// more takes an AGENT_TEXT; done says that the name is whole now.
func (n *namer) more(text []byte) (done bool) {
	p := &n.pending
	take := min(len(text), p.left)
	p.left -= take
	if room := maxText - len(p.text); room > 0 {
		p.text = append(p.text, text[:min(take, room)]...)
	}
	return p.left == 0
}

// drop forgets a name that will not become whole; false where there was none.
func (n *namer) drop() bool {
	had := n.pending.left > 0
	n.pending.left = 0
	return had
}

// set keeps value under id.
func set[T any](list *[]T, id int32, value T) {
	for int(id) >= len(*list) {
		var none T
		*list = append(*list, none)
	}
	(*list)[id] = value
}

// get returns the value under id, or nothing.
func get[T any](list []T, id int32) (value T) {
	if id >= 0 && int(id) < len(list) {
		return list[id]
	}
	return value
}
