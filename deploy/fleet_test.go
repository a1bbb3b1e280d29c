package deploy

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDaemonSet: the manifest for every node is what Kubernetes understands, and grants what the sidecar does.
func TestDaemonSet(t *testing.T) {
	text := read(t, "kubernetes/daemonset.yaml")
	want := slices.Sorted(slices.Values(capabilities))
	if got := slices.Sorted(slices.Values(matches(text, `(?m)^ +- ([A-Z_]+) +#`))); !slices.Equal(got, want) {
		t.Errorf("it grants %v, want %v", got, want)
	}
	secured(t, text)
	if complaint := conform(t, text); complaint != "" {
		t.Errorf("kubeconform: %s", complaint)
	}
	for good, bad := range map[string]string{
		"      hostPID: true": "      hostPid: true", "maxUnavailable: 10%": "maxUnavailabel: 10%",
		"type: DirectoryOrCreate": "typ: DirectoryOrCreate",
	} {
		if broken := strings.Replace(text, good, bad, 1); broken == text {
			t.Errorf("the manifest lacks %q", good)
		} else if conform(t, broken) == "" {
			t.Errorf("a manifest with %q passes: this check says nothing", bad)
		}
	}
}

// secured checks what every manifest must say.
func secured(t *testing.T, text string) {
	t.Helper()
	for _, must := range []string{
		"privileged: false", "allowPrivilegeEscalation: false", `drop: ["ALL"]`, "readOnlyRootFilesystem: true", "type: RuntimeDefault", "hostPID: true",
		"startupProbe:", "readinessProbe:", "livenessProbe:", "memory: 1Gi", "fieldPath: spec.nodeName",
	} {
		if !strings.Contains(text, must) {
			t.Errorf("it lacks %q", must)
		}
	}
}

// render runs helm on the chart.
func render(t *testing.T, set ...string) string {
	t.Helper()
	out, err := tryRender(t, set...)
	if err != nil {
		t.Fatalf("helm with %v: %v", set, err)
	}
	return out
}

func tryRender(t *testing.T, set ...string) (string, error) {
	t.Helper()
	args := []string{
		"template", "inferscope", "helm/inferscope", "--namespace", "inferscope", "--kube-version", "1.34.0",
	}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(tool(t, "helm"), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &stderr)
	}
	return string(out), err
}

// TestChartValues: a value that the chart does not have, or that is of another kind, is an error and is named.
func TestChartValues(t *testing.T) {
	for set, names := range map[string]string{
		"metrics.enable=false":       "enable",
		"recording.enabled=false":    "recording",
		"recordings.quotaMB=lots":    "quotaMB",
		"recordings.upload=bucket":   "upload",
		"metrics.port=99999":         "port",
		"otlp.sample=1.5":            "sample",
		"overheadBudget=two":         "overheadBudget",
		"image.pullPolicy=Sometimes": "pullPolicy",
	} {
		if _, err := tryRender(t, set); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v", set, err)
		}
	}
}

// TestChart: what the chart makes of its values is what Kubernetes understands, and says what was asked for.
func TestChart(t *testing.T) {
	if out, err := exec.Command(tool(t, "helm"), "lint", "--strict", "helm/inferscope").CombinedOutput(); err != nil {
		t.Errorf("helm lint: %v\n%s", err, out)
	}
	for name, c := range map[string]struct {
		set       []string
		has, not  []string
		privilege bool
	}{
		"defaults":   {nil, []string{"--metrics-addr=0.0.0.0:9400", "--record-dir=/var/lib/inferscope", "ClusterRole"}, []string{"SYS_ADMIN", "PodMonitor", "--upload", "secretRef", "--otlp"}, false},
		"old kernel": {[]string{"oldKernel=true"}, []string{"SYS_ADMIN"}, nil, true},
		"rules and upload": {
			[]string{`allow={cmdline=*vllm serve*}`, "deny={user=alice}", "recordings.upload=s3://b/p", "recordings.credentialsSecret=s3", "recordings.region=eu-west-1"},
			[]string{`"--allow=cmdline=*vllm serve*"`, `"--deny=user=alice"`, `"--upload=s3://b/p"`, "name: s3", "--upload-region=eu-west-1"},
			nil, false,
		},
		"spans": {
			[]string{"otlp.endpoint=http://collector:4318", "otlp.sample=0.05", "otlp.headersSecret=otlp", "recordings.credentialsSecret=s3"},
			[]string{`"--otlp-endpoint=http://collector:4318"`, "--otlp-sample=0.05", "name: otlp", "name: s3"},
			nil, false,
		},
		"nothing kept": {[]string{"recordings.enabled=false", "metrics.enabled=false", "podMetadata=false"}, []string{"automountServiceAccountToken: false"}, []string{"--record-dir", "--metrics-addr", "ClusterRole", "containerPort"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			text := render(t, c.set...)
			secured(t, text)
			for _, has := range c.has {
				if !strings.Contains(text, has) {
					t.Errorf("it lacks %q", has)
				}
			}
			for _, not := range c.not {
				if strings.Contains(text, not) {
					t.Errorf("it has %q", not)
				}
			}
			want := slices.Clone(capabilities)
			if c.privilege {
				want = append(want, "SYS_ADMIN")
			}
			slices.Sort(want)
			if got := slices.Sorted(slices.Values(matches(text, `(?m)^ +- ([A-Z]+(?:_[A-Z]+)*)$`))); !slices.Equal(
				got,
				want,
			) {
				t.Errorf("it grants %v, want %v", got, want)
			}
			if complaint := conform(t, text); complaint != "" {
				t.Errorf("kubeconform: %s", complaint)
			}
		})
	}
	if text := render(t, "metrics.podMonitor=true"); !strings.Contains(text, "kind: PodMonitor") ||
		!strings.Contains(text, "port: metrics") {
		t.Error("there is no PodMonitor")
	}
}

// TestDiscoveryUnit: the unit without a pid is that of one process, but for what it watches and where recordings lie.
func TestDiscoveryUnit(t *testing.T) {
	text, one := read(t, "systemd/inferscoped.service"), read(t, "systemd/"+unit)
	for _, key := range []string{
		"CapabilityBoundingSet=", "AmbientCapabilities=", "SystemCallFilter=", "DynamicUser=yes",
		"NoNewPrivileges=yes", "ProtectSystem=strict", "RestrictRealtime=no", "LimitRTPRIO=1", "LimitRTTIME=1s",
	} {
		lines := matches(one, `(?m)^(`+key+`.*)$`)
		if len(lines) != 1 || !strings.Contains(text, "\n"+lines[0]+"\n") {
			t.Errorf("%s is not as in %s: %v", key, unit, lines)
		}
	}
	for _, must := range []string{"ExecStart=/usr/local/bin/inferscoped $INFERSCOPE_ARGS", "StateDirectory=inferscope", "StateDirectoryMode=0700", "WantedBy=multi-user.target"} {
		if !strings.Contains(text, "\n"+must+"\n") {
			t.Errorf("it lacks %s", must)
		}
	}
	// The same checks as of the other, under its name.
	if complaint := verify(t, text, false, "verify"); complaint != "" {
		t.Errorf("systemd-analyze verify: %s", complaint)
	}
	if complaint := verify(t, text, false, "security", "--offline=true", "--threshold=30"); complaint != "" {
		t.Errorf("systemd-analyze security: %s", complaint)
	}
}
