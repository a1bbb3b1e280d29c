package config

import (
	"os"
	"path/filepath"
	"testing"
)

func TestVisibleGPUs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for env, want := range map[string]int{
		"": 3, "CUDA_VISIBLE_DEVICES=0": 1, "CUDA_VISIBLE_DEVICES=1, 2": 2,
		"CUDA_VISIBLE_DEVICES=": 0, "CUDA_VISIBLE_DEVICES=-1": 0,
		"CUDA_VISIBLE_DEVICES=0,-1,1": 1, "CUDA_VISIBLE_DEVICES=0,1,2,3,4": 3, "CUDA_VISIBLE_DEVICES=GPU-8932f937": 1,
		"CUDA_VISIBLE_DEVICES=MIG-1b8bd92d-43d7,MIG-7b2c1d3e-99aa": 1,
	} {
		if got := (Environment{env}).VisibleGPUs(dir); got != want {
			t.Errorf("%q: %d, want %d", env, got, want)
		}
	}
	if got := (Environment{}).VisibleGPUs(filepath.Join(dir, "none")); got != 0 {
		t.Errorf("without a driver: %d", got)
	}
}
