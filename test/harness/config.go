// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/test/again"
)

// Config says where things are and what the cluster is like.
type Config struct {
	// Root is the repository.
	Root string
	// Cache holds the binaries of the cluster in bin and Helm in tools.
	Cache string
	// State is the directory of this cluster's files, and Name its name.
	State, Name string
	// Images holds NAME.tar for every image of the project, and Version is their tag.
	Images, Version string
	// Built says that make has built the images and the cluster's binaries already.
	Built bool
	// Nodes is how many nodes the cluster has. Emulate is the Kubernetes minor whose API it has, "" for the newest.
	Nodes   int
	Emulate string
	// Stage is the target of the Makefile that tools/stages makes; "" by hand.
	Stage string
	// Patience is how many times longer than usual to wait for what must come; 0 is 1.
	Patience int
}

// ConfigFrom fills a Config for the repository at root from the variables that the Makefile exports. What is not set is where make
// would have put it.
func ConfigFrom(root string, environ []string) Config {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	c := Config{
		Root: root, Cache: env["FETTLE_CACHE"], Images: env["FETTLE_IMAGES"], Version: env["FETTLE_VERSION"], Emulate: env["EMULATE"],
		Nodes: 1, Name: "fettle", Stage: env[again.Stage],
	}
	// What is no number is 0.
	c.Patience, _ = strconv.Atoi(env["FETTLE_PATIENCE"])
	c.Built = c.Images != "" && c.Version != ""
	if c.Cache == "" {
		c.Cache = filepath.Join(root, ".cache")
	}
	if !c.Built {
		c.Images, c.Version = filepath.Join(root, "dist", "images"), "v0.0.0-harness"
	}
	c.State = filepath.Join(c.Cache, "cluster")
	return c
}

// Artifacts is where a suite leaves what explains its failures. Each stage has a directory, which no later stage empties; that of a
// spec's second run is inside it.
func (c Config) Artifacts(suite string) string {
	return filepath.Join(c.Cache, suite+"-failed", cmp.Or(c.Stage, "by-hand"))
}

// Repository finds the repository's root from the working directory upwards.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		module, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(module), "module github.com/fettle-dev/fettle\n") {
			return dir, nil
		}
	}
	return "", errors.New("find the repository: no go.mod of Fettle here or above; run this inside a checkout")
}

// slack is how many times longer a limit is than what is limited takes on a usual machine with nothing else to do. One of two cores that
// others share was four times slower for an hour.
const slack = 4

// Patient is how long to wait on this machine for what takes at most limit on a usual one.
func (c Config) Patient(limit time.Duration) time.Duration { return slack * c.Pace(limit) }

// Pace is how long a pause is on this machine, or something has to stay as it is, that is so long on a usual one.
func (c Config) Pace(d time.Duration) time.Duration { return d * time.Duration(max(1, c.Patience)) }

func (c Config) binary(name string) string { return filepath.Join(c.Cache, "bin", name) }

func (c Config) tool(name string) string { return filepath.Join(c.Cache, "tools", name) }

func (c Config) helm() string { return c.tool("helm") }

// Kubeconfig is the file with the cluster administrator's credentials.
func (c Config) Kubeconfig() string { return filepath.Join(c.State, "kubeconfig") }

// StateDir is what a node sees as /var/lib/fettle.
func (c Config) StateDir(node string) string {
	return filepath.Join(c.State, "nodes", node, "fettle")
}

// MachineDir is the host tree of a node's simulated machine; the node sees it as /opt/machine.
func (c Config) MachineDir(node string) string {
	return filepath.Join(c.State, "nodes", node, "machine")
}
