package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestRelease makes the image and the bills of materials from two folders: they are the same byte for byte, and hold
// what deploy/Dockerfile has, for both machines.
func TestRelease(t *testing.T) {
	needs.Long(t)
	// A checkout elsewhere: paths must not get into what is made.
	root, err := filepath.Abs("..")
	must.NoError(t, err)
	elsewhere := filepath.Join(t.TempDir(), "another", "checkout")
	must.NoError(t, os.MkdirAll(elsewhere, 0o700))
	for _, name := range []string{"agent", "bpf", "cmd", "internal", "scripts", "go.mod", "go.sum", "LICENSE"} {
		must.Run(t, exec.Command("cp", "-r", filepath.Join(root, name), elsewhere))
	}
	var dist string
	var made [2]map[string]string
	for i, from := range []string{root, elsewhere} {
		dist = t.TempDir()
		cmd := exec.CommandContext(t.Context(), filepath.Join(from, "scripts/release.sh"))
		cmd.Env = append(os.Environ(), "DIST="+dist, "VERSION=v1.2.3", "SOURCE_DATE_EPOCH=1700000000")
		must.Run(t, cmd)
		made[i] = map[string]string{}
		files, err := filepath.Glob(filepath.Join(dist, "*.*"))
		must.NoError(t, err)
		for _, f := range files {
			made[i][filepath.Base(f)] = read(t, f)
		}
	}
	if len(made[0]) != 5 { // four bills of materials and image.sha256
		t.Errorf("it makes %d files", len(made[0]))
	}
	for name, text := range made[0] {
		if made[1][name] != text {
			t.Errorf("%s is not the same when it is made in another folder", name)
		}
	}
	images(t, filepath.Join(dist, "image"))
	materials(t, made[0]["inferscoped_amd64.cdx.json"])
}

// images checks an OCI layout of one image for two machines.
func images(t *testing.T, dir string) {
	t.Helper()
	whole, err := layout.ImageIndexFromPath(dir)
	must.NoError(t, err)
	outer, err := whole.IndexManifest()
	if err != nil || len(outer.Manifests) != 1 ||
		outer.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Fatalf("the layout names %+v: %v", outer, err)
	}
	index, err := whole.ImageIndex(outer.Manifests[0].Digest)
	must.NoError(t, err)
	if err := validate.Index(index); err != nil {
		t.Errorf("the image is invalid: %v", err)
	}
	manifest, err := index.IndexManifest()
	must.NoError(t, err)
	var machines []string
	for _, m := range manifest.Manifests {
		machines = append(machines, m.Platform.String())
		img, err := index.Image(m.Digest)
		must.NoError(t, err)
		asDockerfile(t, img)
	}
	if got := strings.Join(machines, " "); got != "linux/amd64 linux/arm64" {
		t.Errorf("it is for %s", got)
	}
}

// asDockerfile checks that an image starts as the one of deploy/Dockerfile does.
func asDockerfile(t *testing.T, img v1.Image) {
	t.Helper()
	c, err := img.ConfigFile()
	must.NoError(t, err)
	docker := read(t, "Dockerfile")
	for _, line := range []string{
		"USER " + c.Config.User, "ENV " + c.Config.Env[0], `ENTRYPOINT ["` + strings.Join(c.Config.Entrypoint, `", "`) + `"]`,
		`org.opencontainers.image.title="` + c.Config.Labels["org.opencontainers.image.title"] + `"`,
		`org.opencontainers.image.licenses="` + c.Config.Labels["org.opencontainers.image.licenses"] + `"`,
	} {
		if !strings.Contains(docker, line) {
			t.Errorf("deploy/Dockerfile does not have %s", line)
		}
	}
}

// materials checks a bill of materials.
func materials(t *testing.T, text string) {
	t.Helper()
	var b struct {
		BOMFormat, SpecVersion string
		Metadata               struct {
			Component struct{ Name, Version, PURL string }
		}
		Components []struct{ Name, Version, PURL string }
	}
	must.NoError(t, json.Unmarshal([]byte(text), &b))
	if b.BOMFormat != "CycloneDX" || b.SpecVersion != "1.6" || b.Metadata.Component.Name != "inferscoped" ||
		b.Metadata.Component.Version != "v1.2.3" {
		t.Errorf("the bill is %.500s", text)
	}
	found := map[string]string{}
	for _, c := range b.Components {
		found[c.Name] = c.Version
		if c.Version == "" || !strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@") {
			t.Errorf("component %+v", c)
		}
	}
	module := read(t, "../go.mod")
	for _, name := range []string{"github.com/cilium/ebpf", "github.com/minio/minio-go/v7"} {
		if found[name] == "" || !strings.Contains(module, name+" "+found[name]) {
			t.Errorf("%s is in version %q", name, found[name])
		}
	}
	if found["std"] == "" || found["github.com/google/go-containerregistry"] != "" {
		t.Error("the Go release is missing, or something is in it that programs do not use")
	}
}
