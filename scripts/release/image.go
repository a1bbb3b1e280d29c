package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image writes an OCI layout with an image for each platform. It has what deploy/Dockerfile has (tested).
func image(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	out := flags.String("out", "", "directory of the layout; it must not exist")
	license := flags.String("license", "LICENSE", "file of the licence")
	version := flags.String("version", "devel", "of the programs")
	unix := flags.Int64("time", 0, "of all files, seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if _, err := os.Lstat(*out); err == nil || *out == "" {
		return fmt.Errorf("-out: name a directory that does not exist, and not %q", *out)
	}
	at := time.Unix(*unix, 0).UTC()
	var index v1.ImageIndex = empty.Index
	index = mutate.IndexMediaType(index, types.OCIImageIndex)
	for _, arg := range flags.Args() {
		platform, dir, ok := strings.Cut(arg, "=")
		system, machine, known := strings.Cut(platform, "/")
		if !ok || !known {
			return fmt.Errorf("%q: want OS/ARCH=DIR", arg)
		}
		img, err := one(dir, *license, *version, system, machine, at)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: system, Architecture: machine}},
		})
	}
	// The layout's own index names one index, which names an image for each platform: that is what tools copy whole.
	path, err := layout.Write(*out, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendIndex(index,
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": *version}))
}

// one returns the image for one platform, with the programs in dir.
func one(dir, license, version, system, machine string, at time.Time) (v1.Image, error) {
	data, err := layer([]file{
		{"bin/inferscope", filepath.Join(dir, "inferscope"), 0o755},
		{"bin/inferscoped", filepath.Join(dir, "inferscoped"), 0o755},
		{"LICENSES/LICENSE", license, 0o644},
	}, at)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithMediaType(types.OCILayer),
	)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.Append(img, mutate.Addendum{Layer: l, History: v1.History{
		Created: v1.Time{Time: at}, CreatedBy: "make image",
	}}); err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = system, machine, v1.Time{Time: at}
	c.Config = v1.Config{
		User:       "0:0",
		Env:        []string{"PATH=/bin"},
		Entrypoint: []string{"/bin/inferscoped"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "InferScope",
			"org.opencontainers.image.source":   "https://github.com/inferscope/inferscope",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version":  version,
		},
	}
	return mutate.ConfigFile(img, c)
}

// file is a file of a layer.
type file struct {
	name, from string
	mode       int64
}

// layer writes files and their folders into a tar file, all of one time and one owner.
func layer(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{}
	for _, f := range files {
		if dir := filepath.Dir(f.name); !made[dir] {
			made[dir] = true
			head := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX}
			if err := w.WriteHeader(head); err != nil {
				return nil, err
			}
		}
		data, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		head := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(data)), ModTime: at,
			Format: tar.FormatPAX,
		}
		err = w.WriteHeader(head)
		_, err2 := w.Write(data)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
