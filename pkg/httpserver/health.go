// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"fmt"
	"net/http"
)

// Health returns the handler of /healthz, which answers while the process serves, and of /readyz, which says why ready returns an error.
func Health(ready func() error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
