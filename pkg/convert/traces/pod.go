// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"maps"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
)

// metadata is what an object has in its metadata.
type metadata struct {
	Annotations map[string]any `yaml:"annotations"`
	Labels      map[string]any `yaml:"labels"`
}

// podSpec has the fields of a pod's spec in which names of other software stand.
type podSpec struct {
	NodeSelector     map[string]any `yaml:"nodeSelector"`
	Affinity         any            `yaml:"affinity"`
	Tolerations      []keyed        `yaml:"tolerations"`
	SchedulerName    string         `yaml:"schedulerName"`
	RuntimeClassName string         `yaml:"runtimeClassName"`
	InitContainers   []container    `yaml:"initContainers"`
	Containers       []container    `yaml:"containers"`
}

type keyed struct {
	Key string `yaml:"key"`
}

type container struct {
	Name string `yaml:"name"`
	Env  []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	Resources struct {
		Requests map[string]any `yaml:"requests"`
		Limits   map[string]any `yaml:"limits"`
	} `yaml:"resources"`
}

// Of lists the names that an object with pods has: those of its own metadata, and of the pod's metadata and spec. They are in the order of
// the places, each once. What has another form than the API's is left out.
func Of(own, meta, spec *goyaml.Node) []Name {
	var all []Name
	add := func(place Place, container string, names ...string) {
		for _, name := range names {
			if one := (Name{place, name, container}); !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	of := []metadata{read[metadata](own), read[metadata](meta)}
	for _, m := range of {
		add(Annotation, "", slices.Sorted(maps.Keys(m.Annotations))...)
	}
	for _, m := range of {
		add(Label, "", slices.Sorted(maps.Keys(m.Labels))...)
	}
	pod := read[podSpec](spec)
	add(NodeSelector, "", slices.Sorted(maps.Keys(pod.NodeSelector))...)
	add(Affinity, "", keysIn(pod.Affinity)...)
	for _, t := range pod.Tolerations {
		add(Toleration, "", t.Key)
	}
	add(Scheduler, "", pod.SchedulerName)
	add(RuntimeClass, "", pod.RuntimeClassName)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, v := range c.Env {
			if v.Value == "void" || v.Value == "none" {
				continue // no device
			}
			add(Variable, c.Name, v.Name)
		}
		resources := slices.Concat(slices.Collect(maps.Keys(c.Resources.Requests)), slices.Collect(maps.Keys(c.Resources.Limits)))
		slices.Sort(resources)
		add(Resource, c.Name, resources...)
	}
	return all
}

// amounts are the keys of mappings from resources to quantities: of containers, quotas and LimitRanges, and of the queues of Volcano.
func amounts() []string {
	return []string{
		"limits", "requests", "hard", "max", "min", "default", "defaultRequest", "maxLimitRequestRatio", "capability", "deserved", "resource",
	}
}

// Resources lists the resources of the older software that an object of any kind has in limits, requests or a quota, each once and sorted.
func Resources(n *goyaml.Node) []string {
	all := resourcesIn(n)
	slices.Sort(all)
	return slices.Compact(all)
}

func resourcesIn(n *goyaml.Node) (all []string) {
	if n == nil {
		return nil
	}
	for _, part := range n.Content {
		all = append(all, resourcesIn(part)...)
	}
	if n.Kind != goyaml.MappingNode {
		return all
	}
	for kv := range slices.Chunk(n.Content, 2) {
		switch kv[0].Value {
		case "coveredResources": // of Kueue's queues
			for _, item := range kv[1].Content {
				all = append(all, item.Value)
			}
		case "deviceName": // of KubeVirt's virtual machines
			all = append(all, kv[1].Value)
		}
		if !slices.Contains(amounts(), kv[0].Value) || kv[1].Kind != goyaml.MappingNode {
			continue
		}
		for of := range slices.Chunk(kv[1].Content, 2) {
			all = append(all, strings.TrimPrefix(strings.TrimPrefix(of[0].Value, "requests."), "limits."))
		}
	}
	return slices.DeleteFunc(all, func(name string) bool { return !ofDomain(name) })
}

// read reads what it can of a node. A field of another type stays empty.
func read[T any](n *goyaml.Node) (content T) {
	if n != nil {
		_ = n.Decode(&content)
	}
	return content
}

// keysIn lists the labels that expressions of an affinity ask for: the values of key and topologyKey, and the keys of matchLabels.
func keysIn(content any) (all []string) {
	switch v := content.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			text, isText := v[key].(string)
			labels, isMap := v[key].(map[string]any)
			switch {
			case isText && (key == "key" || key == "topologyKey"):
				all = append(all, text)
			case isMap && key == "matchLabels":
				all = append(all, slices.Sorted(maps.Keys(labels))...)
			default:
				all = append(all, keysIn(v[key])...)
			}
		}
	case []any:
		for _, item := range v {
			all = append(all, keysIn(item)...)
		}
	}
	return all
}
