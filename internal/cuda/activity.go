package cuda

import "strings"

// CopyKind says between what a GPU copied: CUpti_ActivityMemcpyKind of the CUPTI reference, "Activity API".
type CopyKind uint8

// The kinds that say by themselves which way a copy went.
const (
	HostToDevice CopyKind = 1
	DeviceToHost CopyKind = 2
	HostToArray  CopyKind = 3
	ArrayToHost  CopyKind = 4
	PeerToPeer   CopyKind = 10 // from one GPU, or context, to another
)

// copyKinds are their names: as CUPTI and Kineto write them, and as the API's Direction does where it has one.
var copyKinds = [...]struct{ cupti, short string }{
	{"Unknown", "unknown"},
	{"HtoD", string(H2D)},
	{"DtoH", string(D2H)},
	{"HtoA", "HtoA"},
	{"AtoH", "AtoH"},
	{"AtoA", "AtoA"},
	{"AtoD", "AtoD"},
	{"DtoA", "DtoA"},
	{"DtoD", string(D2D)},
	{"HtoH", string(H2H)},
	{"PtoP", string(Peer)},
}

// Known returns the kind, or unknown for one that has no name.
func (k CopyKind) Known() CopyKind {
	if int(k) < len(copyKinds) {
		return k
	}
	return 0
}

// String returns the short name: H2D.
func (k CopyKind) String() string { return copyKinds[k.Known()].short }

// CUPTI returns the name that CUPTI and Kineto use: HtoD.
func (k CopyKind) CUPTI() string { return copyKinds[k.Known()].cupti }

// CopyKindIn returns the kind whose CUPTI name a text has in it, unknown where it has none.
func CopyKindIn(text string) CopyKind {
	for k := len(copyKinds) - 1; k > 0; k-- {
		if strings.Contains(text, copyKinds[k].cupti) {
			return CopyKind(k)
		}
	}
	return 0
}

// MemoryKind says in what memory a GPU's copy began or ended: CUpti_ActivityMemoryKind of the CUPTI reference,
// "Activity API".
type MemoryKind uint8

// Pageable memory of the host: a copy goes through a buffer of the driver's.
const Pageable MemoryKind = 1

var memoryKinds = [...]string{
	"Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static",
}

// Known returns the kind, or unknown for one that has no name.
func (k MemoryKind) Known() MemoryKind {
	if int(k) < len(memoryKinds) {
		return k
	}
	return 0
}

// String returns the name in lower case: pinned.
func (k MemoryKind) String() string { return strings.ToLower(k.CUPTI()) }

// CUPTI returns the name that CUPTI and Kineto use: Pinned.
func (k MemoryKind) CUPTI() string { return memoryKinds[k.Known()] }

// MemoryKindOf returns the kind of a CUPTI name, unknown for any other text.
func MemoryKindOf(name string) MemoryKind {
	for k, known := range memoryKinds {
		if name == known {
			return MemoryKind(k)
		}
	}
	return 0
}
