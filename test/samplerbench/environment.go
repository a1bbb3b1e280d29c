package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed workloads.py
var script []byte

// packages are what the workloads import, by their names on PyPI.
func packages() []string {
	return []string{"numpy", "pillow", "opencv-python-headless", "tokenizers", "torch"}
}

func workloads() []string {
	return []string{"pure", "json", "numpy", "tokenizers", "pil", "opencv", "conv2d", "transformer"}
}

// environment returns the Python of a virtual environment that has the packages.
func environment(ctx context.Context, venv string, log io.Writer) (string, error) {
	if venv != "" {
		return filepath.Join(venv, "bin", "python"), nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place for the packages: %w: give -venv", err)
	}
	venv = filepath.Join(cache, "inferscope", "samplerbench")
	python := filepath.Join(venv, "bin", "python")
	done := filepath.Join(venv, "complete")
	if _, err := os.Stat(done); err == nil {
		return python, nil
	}
	steps := [][]string{
		{"python3", "-m", "venv", venv},
		append([]string{python, "-m", "pip", "install", "--quiet"}, packages()...),
	}
	for _, step := range steps {
		fmt.Fprintln(log, "samplerbench:", step)
		cmd := exec.CommandContext(ctx, step[0], step[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%v: %w", step, err)
		}
	}
	return python, os.WriteFile(done, nil, 0o644)
}
