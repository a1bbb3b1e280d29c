package gpu

import "testing"

func TestUUID(t *testing.T) {
	if got := uuid(0, 0, false); got != "" {
		t.Errorf("no UUID is written as %q", got)
	}
	// Bytes 0x00 to 0x0f, as nvidia-smi -L writes them.
	for part, want := range map[bool]string{
		false: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", true: "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f",
	} {
		if got := uuid(0x0706050403020100, 0x0f0e0d0c0b0a0908, part); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
