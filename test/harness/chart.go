// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	// Namespace is where the chart is installed, and Release its name.
	Namespace = "fettle-system"
	Release   = "fettle"

	// chartDir is where a source tree has the chart.
	chartDir = "deployments/helm/fettle"
)

// Values are a chart's values, as in a YAML file.
type Values map[string]any

// Chart is the driver's Helm chart, on one cluster.
type Chart struct{ *Config }

// BaseValues are the chart's values for a simulated machine, with the images that the nodes have.
func (c Chart) BaseValues() Values { return c.ValuesOf(c.Version) }

// ValuesOf are BaseValues for another version of the images.
func (c Chart) ValuesOf(version string) Values {
	image := map[string]any{"tag": version, "pullPolicy": "Never"}
	return Values{
		"hostRoot": MachineRoot,
		// On a small machine the walks of all nodes take most of its processors: simulated sysfs is a file system of a process.
		"discoveryInterval": "2s",
		"kubeletPlugin":     map[string]any{"image": image, "terminationGracePeriodSeconds": 10},
		"controller":        map[string]any{"image": image},
		// Metrics are read through the API server's proxy, which sends nobody's token on.
		"metrics": map[string]any{"authentication": false},
	}
}

// Merge returns the values with others laid over them, as Helm does.
func (v Values) Merge(over Values) Values {
	out := Values{}
	for key, value := range v {
		out[key] = value
	}
	for key, value := range over {
		below, isMap := asMap(out[key])
		above, overIsMap := asMap(value)
		if isMap && overIsMap {
			value = map[string]any(below.Merge(above))
		}
		out[key] = value
	}
	return out
}

func asMap(value any) (Values, bool) {
	switch v := value.(type) {
	case map[string]any:
		return v, true
	case Values:
		return v, true
	default:
		return nil, false
	}
}

// Install installs this source's chart or upgrades to it, and waits until all its pods are ready.
func (c Chart) Install(ctx context.Context, values Values) error {
	return c.InstallChart(ctx, chartDir, values)
}

// waits is how Helm waits for pods. Its default, watcher, waits for the pods of fettle-mps as well, which no upgrade replaces.
const waits = "--wait=legacy"

// InstallChart does so with a chart in another directory.
func (c Chart) InstallChart(ctx context.Context, chart string, values Values) error {
	data, err := yaml.Marshal(values)
	if err != nil {
		return fmt.Errorf("encode the chart's values: %w", err)
	}
	_, err = c.run(ctx, bytes.NewReader(data), c.helm(), "upgrade", "--install", Release, chart,
		"--namespace", Namespace, "--create-namespace", waits, "--timeout", c.helmLimit(), "--values", "-")
	return err
}

// Rollback goes back to a revision, 0 for the one before, and waits.
func (c Chart) Rollback(ctx context.Context, revision int) error {
	_, err := c.helmCommand(ctx, "rollback", Release, strconv.Itoa(revision), waits, "--timeout", c.helmLimit())
	return err
}

// Revision is the release's newest revision.
func (c Chart) Revision(ctx context.Context) (int, error) {
	out, err := c.helmCommand(ctx, "history", Release, "--max", "1", "--output", "json")
	if err != nil {
		return 0, err
	}
	var history []struct {
		Revision int `json:"revision"`
	}
	if err := json.Unmarshal([]byte(out), &history); err != nil || len(history) != 1 {
		return 0, fmt.Errorf("decode the release's history %q: %w", out, err)
	}
	return history[0].Revision, nil
}

// Uninstall removes the release; the error holds what the chart's hook said where it refused.
func (c Chart) Uninstall(ctx context.Context) (string, error) {
	return c.helmCommand(ctx, "uninstall", Release, "--wait", "--timeout", c.helmLimit())
}

// TestChart runs the chart's own test and returns what Helm and the test printed.
func (c Chart) TestChart(ctx context.Context) (string, error) {
	const testLimit = 2 * time.Minute
	stdout, stderr, err := c.runBoth(ctx, nil, c.helm(), "--namespace", Namespace, "test", Release, "--timeout", c.Patient(testLimit).String())
	return stdout + stderr, err
}

// helmLimit is how long Helm waits.
func (c Chart) helmLimit() string {
	const limit = 3 * time.Minute
	return c.Patient(limit).String()
}

func (c Chart) helmCommand(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, nil, append([]string{c.helm(), "--namespace", Namespace}, args...)...)
}

// Template renders one template of this source's chart, whose name is relative to the directory of templates.
func (c Chart) Template(ctx context.Context, template string, values Values) (string, error) {
	data, err := yaml.Marshal(values)
	if err != nil {
		return "", fmt.Errorf("encode the chart's values: %w", err)
	}
	return c.run(ctx, bytes.NewReader(data), c.helm(), "template", Release, chartDir, "--namespace", Namespace, "--values", "-",
		"--show-only", "templates/"+template)
}

// Manifests renders all of this source's chart, hooks included, as on a cluster with the kinds of Prometheus' operator.
func (c Chart) Manifests(ctx context.Context, values Values) (string, error) {
	data, err := yaml.Marshal(values)
	if err != nil {
		return "", fmt.Errorf("encode the chart's values: %w", err)
	}
	return c.run(ctx, bytes.NewReader(data), c.helm(), "template", Release, chartDir, "--namespace", Namespace, "--values", "-",
		"--api-versions", "monitoring.coreos.com/v1")
}
