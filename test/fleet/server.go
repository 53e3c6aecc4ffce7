// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Server is an API server of so many nodes of a fleet, and of other objects. It answers lists, page by page and in protobuf where that is
// accepted, and remembers what it was asked for.
type Server struct {
	Fleet *Fleet
	Nodes int
	// Objects are by the last word of their path: pods, deviceclasses.
	Objects map[string]runtime.Object

	mu    sync.Mutex
	asked []Asked
}

// Asked is a request for a list.
type Asked struct {
	Path, Fields string
	Limit        int
	Protobuf     bool
	// Items is how many objects were answered.
	Items int
}

// Asked returns the lists that were asked for.
func (s *Server) Asked() []Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Asked(nil), s.asked...)
}

// ServeHTTP answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := Asked{Path: r.URL.Path, Fields: r.URL.Query().Get("fieldSelector")}
	asked.Limit, _ = strconv.Atoi(r.URL.Query().Get("limit"))
	asked.Protobuf = strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf)
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	var list runtime.Object
	var err error
	switch resource := path.Base(r.URL.Path); {
	case resource == "version":
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"major":"1","minor":"37"}`)
		return
	case resource == "metrics":
		http.Error(w, "no", http.StatusForbidden)
		return
	case resource == "nodes":
		list, asked.Items = s.nodes(from, asked.Limit)
	case resource == "resourceslices":
		list, asked.Items, err = s.slices(from, &asked)
	case s.Objects[resource] != nil:
		list = s.Objects[resource]
	default:
		list = &corev1.NamespaceList{}
	}
	s.mu.Lock()
	s.asked = append(s.asked, asked)
	s.mu.Unlock()
	if err == nil {
		err = write(w, list, asked.Protobuf)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func write(w http.ResponseWriter, list runtime.Object, protobuf bool) error {
	kind := runtime.ContentTypeJSON
	if protobuf {
		kind = runtime.ContentTypeProtobuf
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), kind)
	kinds, _, err := scheme.Scheme.ObjectKinds(list)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", kind)
	return scheme.Codecs.EncoderForVersion(info.Serializer, kinds[0].GroupVersion()).Encode(list, w)
}

// page returns from where to where a page goes, and what a list of so many says of it.
func page(from, limit, all int) (to int, about metav1.ListMeta) {
	about.ResourceVersion = "7"
	if to = from + limit; limit == 0 || to >= all {
		return all, about
	}
	about.Continue, about.RemainingItemCount = strconv.Itoa(to), new(int64(all-to))
	return to, about
}

func (s *Server) nodes(from, limit int) (runtime.Object, int) {
	to, about := page(from, limit, s.Nodes)
	list := &corev1.NodeList{ListMeta: about}
	for i := from; i < to; i++ {
		list.Items = append(list.Items, *Node(i))
	}
	return list, len(list.Items)
}

// slices selects by node, and by driver where it is Fettle's.
func (s *Server) slices(from int, asked *Asked) (runtime.Object, int, error) {
	first, nodes := 0, s.Nodes
	selector, err := fields.ParseSelector(asked.Fields)
	if err != nil {
		return nil, 0, err
	}
	if name, found := selector.RequiresExactMatch(resourceapi.ResourceSliceSelectorNodeName); found {
		if _, err := fmt.Sscanf(name, "node-%d", &first); err != nil {
			return nil, 0, err
		}
		nodes = 1
	}
	each := len(s.Fleet.gpus) + 1 // the counters'
	to, about := page(from, asked.Limit, nodes*each)
	list := &resourceapi.ResourceSliceList{ListMeta: about}
	for i := from; i < to; {
		node, err := s.Fleet.Slices(first + i/each)
		if err != nil {
			return nil, 0, err
		}
		for _, one := range node[i%each : min(len(node), i%each+to-i)] {
			list.Items, i = append(list.Items, *one), i+1
		}
	}
	return list, len(list.Items), nil
}
