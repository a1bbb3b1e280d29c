package gpu

import "testing"

func TestUUID(t *testing.T) {
	if got := uuid(0, 0); got != "" {
		t.Errorf("no UUID is written as %q", got)
	}
	// Bytes 0x00 to 0x0f, as nvidia-smi -L writes them.
	if got, want := uuid(0x0706050403020100, 0x0f0e0d0c0b0a0908), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
