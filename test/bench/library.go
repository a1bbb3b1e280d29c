package main

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// library is a libcuda that calls are made of.
type library struct {
	name  string
	path  string
	thunk bool  // exports are the thunks of drivers 470 to 555
	err   error // why it is not to be had
}

// libraries are those that calls are measured on.
func (l *lab) libraries() []library {
	all := []library{
		{name: "cudasim r580", path: l.sim.Libcuda(cudasim.Shape580)},
		{name: "cudasim r535", path: l.sim.Libcuda(cudasim.Shape535), thunk: true},
	}
	for _, part := range []nvlibs.Part{nvlibs.Driver535, nvlibs.Driver550} {
		real := library{name: "NVIDIA " + string(part), thunk: true}
		real.err = attempt(func(tb testing.TB) { real.path = nvlibs.Library(tb, part) })
		all = append(all, real)
	}
	return all
}

// function is an exported function with the place of its probe.
type function struct {
	elffile.Function
	point uprobe.Point
}

// site is where the daemon would probe f, and what for: f is number index of its
// function table.
func (f *function) site(index uint16) (uprobe.Site, error) {
	row, ok := cuda.Match(f.Name)
	if !ok {
		return uprobe.Site{}, fmt.Errorf("%s is not in the table of CUDA functions", f.Name)
	}
	return uprobe.Site{Offset: f.Offset + f.point.Offset, Cookie: row.Cookie(index), Timed: row.Timed}, nil
}

// exports reads a library's functions, one for each address.
func exports(path string) ([]function, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	lib, err := elffile.Open(file, info.Size())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	all, err := lib.Functions()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	out := make([]function, 0, len(all))
	for _, f := range all {
		if !f.Indirect {
			out = append(out, function{f, uprobe.Choose(f.Code, f.Addr, lib.Machine)})
		}
	}
	return out, nil
}

func find(all []function, name string) (*function, error) {
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, errors.New("it does not export " + name)
}
