package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
)

// bom is a bill of materials, as far as CycloneDX 1.6 is used here (https://cyclonedx.org/docs/1.6/json).
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// sbom writes what a program is made of, as its linker has noted it: the modules whose packages are in it, with
// versions and the go.sum hashes, and the Go release.
func sbom(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	version := flags.String("version", "devel", "of the program")
	unix := flags.Int64("time", 0, "when it was made, seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("usage: release sbom PROGRAM")
	}
	program := flags.Arg(0)
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	b := bom{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{
		Timestamp: time.Unix(*unix, 0).UTC().Format(time.RFC3339),
		Component: component{
			Type: "application", Name: filepath.Base(program), Version: *version, PURL: purl(info.Main.Path, *version),
			Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
		},
	}}
	main := &b.Metadata.Component
	main.Ref = main.PURL + "#" + main.Name
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "CGO_ENABLED", "-trimpath":
			main.Properties = append(main.Properties, property{"go:build:" + s.Key, s.Value})
		}
	}
	release := strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go")
	b.Components = append(b.Components, library("std", release, ""))
	for _, m := range info.Deps {
		b.Components = append(b.Components, moduleOf(m))
	}
	all := dependency{Ref: main.Ref}
	for i := range b.Components {
		all.DependsOn = append(all.DependsOn, b.Components[i].Ref)
	}
	b.Dependencies = []dependency{all}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

func moduleOf(m *debug.Module) component {
	if m.Replace != nil {
		m = m.Replace
	}
	return library(m.Path, m.Version, m.Sum)
}

// library returns a module. sum is its hash in go.sum: of its files, and not of an archive, so that it is no hash in
// the sense of CycloneDX.
func library(path, version, sum string) component {
	c := component{Type: "library", Name: path, Version: version, PURL: purl(path, version)}
	c.Ref = c.PURL
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	return c
}

// purl returns a package URL (https://github.com/package-url/purl-spec).
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + url.PathEscape(version)
}
