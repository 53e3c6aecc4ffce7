// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"maps"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPluginConfiguration: the page of the plugin's configuration has its defaults, and each key as the Go types have it.
func TestPluginConfiguration(t *testing.T) {
	file, err := nodeconfig.Parse([]byte("apiVersion: " + nodeconfig.APIVersion + "\nkind: " + nodeconfig.Kind + "\n"))
	check.Must(t, err)
	defaults, err := yaml.Marshal(file)
	check.Must(t, err)
	b := &book{types: typesOf(t, "../../pkg/discover"), places: map[string]string{}}
	for _, dir := range []string{"pkg/foreign", "pkg/health", "pkg/preset", "pkg/nodeconfig"} {
		maps.Copy(b.types, typesOf(t, filepath.Join("../..", dir)))
	}
	b.WriteString("# KubeletPluginConfiguration\n\nThe file of the plugin's flag `--config`. The defaults, beside what is empty:\n\n" +
		"```yaml\n" + string(defaults) + "```\n")
	b.queue = [][2]string{{"", "File"}}
	b.structs("")
	check.Golden(t, filepath.Join(pages, "kubeletpluginconfiguration.md"), made+b.String())
}
