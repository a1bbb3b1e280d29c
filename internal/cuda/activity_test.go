package cuda

import "testing"

func TestCopyKinds(t *testing.T) {
	for kind, want := range map[CopyKind][2]string{
		0: {"unknown", "Unknown"}, HostToDevice: {"H2D", "HtoD"}, DeviceToHost: {"D2H", "DtoH"},
		HostToArray: {"HtoA", "HtoA"},
		ArrayToHost: {"AtoH", "AtoH"}, 8: {"D2D", "DtoD"}, 10: {"peer", "PtoP"}, 11: {"unknown", "Unknown"},
		255: {"unknown", "Unknown"},
	} {
		if got := [2]string{kind.String(), kind.CUPTI()}; got != want {
			t.Errorf("kind %d: %q, want %q", kind, got, want)
		}
		if kind.Known() == kind && CopyKindIn("Memcpy "+want[1]+" (Pinned -> Device)") != kind {
			t.Errorf("%q is not read as kind %d", want[1], kind)
		}
	}
	if got := CopyKindIn("Memcpy"); got != 0 {
		t.Errorf("a copy without a kind is of kind %d", got)
	}
}

func TestMemoryKinds(t *testing.T) {
	for kind, want := range map[MemoryKind][2]string{
		0: {"unknown", "Unknown"}, Pageable: {"pageable", "Pageable"}, 2: {"pinned", "Pinned"},
		7: {"managed static", "Managed Static"},
		8: {"unknown", "Unknown"}, 255: {"unknown", "Unknown"},
	} {
		if got := [2]string{kind.String(), kind.CUPTI()}; got != want {
			t.Errorf("kind %d: %q, want %q", kind, got, want)
		}
		if kind.Known() == kind && MemoryKindOf(want[1]) != kind {
			t.Errorf("%q is not read as kind %d", want[1], kind)
		}
	}
	if got := MemoryKindOf("Texture"); got != 0 {
		t.Errorf("a memory that CUPTI does not have is of kind %d", got)
	}
}
