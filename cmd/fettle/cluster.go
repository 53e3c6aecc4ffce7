// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// cluster is how one is reached: by the flags that kubectl has too.
type cluster struct {
	*genericclioptions.ConfigFlags
	all    bool
	reader *reader // of the first client
}

// cluster declares the flags of a verb that looks into a namespace, or all.
func (a *arguments) cluster() *cluster {
	c := a.connect(genericclioptions.NewConfigFlags(true))
	a.BoolVarP(&c.all, "all-namespaces", "A", false, "all namespaces")
	return c
}

// connection declares the flags of a verb that knows no namespaces.
func (a *arguments) connection() *cluster {
	config := genericclioptions.NewConfigFlags(true)
	config.Namespace = nil
	return a.connect(config)
}

// connect declares kubectl's flags. Two are left out: --cluster, which means something else for devices, and --cache-dir, since nothing is
// cached.
func (a *arguments) connect(config *genericclioptions.ConfigFlags) *cluster {
	config.ClusterName, config.CacheDir = nil, nil
	c := &cluster{ConfigFlags: config}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{ofKubectl: {"true"}}
		a.AddFlag(f)
	})
	a.completeCluster(c)
	return c
}

// whichCluster returns a flag of kubectl that was given, or "".
func (a *arguments) whichCluster() string {
	name := ""
	a.Visit(func(f *pflag.Flag) {
		if f.Annotations[ofKubectl] != nil {
			name = f.Name
		}
	})
	return name
}

// client returns one for any kind of object, and the namespace to look into: empty for all.
func (c *cluster) client() (*reader, string, error) {
	config, err := c.ToRESTConfig()
	if err != nil {
		return nil, "", fmt.Errorf("find the cluster: %w", err)
	}
	namespace := metav1.NamespaceAll
	if c.Namespace != nil && !c.all {
		if namespace, _, err = c.ToRawKubeConfigLoader().Namespace(); err != nil {
			return nil, "", fmt.Errorf("find the namespace: %w", err)
		}
	}
	if c.reader == nil {
		if c.reader, err = newReader(config); err != nil {
			return nil, "", fmt.Errorf("find the cluster: %w", err)
		}
	}
	return c.reader, namespace, nil
}

// contexts lists the contexts of the kubeconfig.
func (c *cluster) contexts() []string {
	config, err := c.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}
