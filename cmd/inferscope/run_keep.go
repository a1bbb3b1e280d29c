package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
)

// keepRecording writes a recording into a new directory in dir with the rights of a user (nil: of this process) and
// returns its path.
func keepRecording(dir string, rec *recording.Recording, as *syscall.Credential) (path string, err error) {
	if _, err := os.Stat(dir); err != nil { // it is not made: the user did not want it
		return "", fmt.Errorf("keeping the recording: %w", err)
	}
	name, clock := fmt.Sprintf("inferscope-%d", rec.Meta.Target), clockOf(rec)
	for n := 1; n < 1000; n++ {
		path = filepath.Join(dir, name+".isc")
		if err = archive.WriteAs(path, rec, clock, as); !errors.Is(err, os.ErrExist) {
			break
		}
		name = fmt.Sprintf("inferscope-%d-%d", rec.Meta.Target, n)
	}
	if err != nil {
		return "", fmt.Errorf("keeping the recording in %s: %w", path, err)
	}
	return path, nil
}
