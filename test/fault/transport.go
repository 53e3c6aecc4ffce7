// SPDX-License-Identifier: Apache-2.0

package fault

import "net/http"

// Transport disturbs API calls. A call that fails was not sent; one that is lost was, and its answer does not arrive.
func (i *Injector) Transport(under http.RoundTripper) http.RoundTripper {
	return transport{in: i, under: under}
}

type transport struct {
	in    *Injector
	under http.RoundTripper
}

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	var (
		response *http.Response
		sent     bool
	)
	op := Op{Kind: Call, Path: request.Method + " " + request.URL.RequestURI()}
	err := t.in.do(request.Context(), op, func(*Op) (err error) {
		sent = true
		response, err = t.under.RoundTrip(request)
		return err
	})
	if !sent && request.Body != nil {
		_ = request.Body.Close() // as http.RoundTripper must, also on errors
	}
	if err != nil && response != nil {
		_ = response.Body.Close()
		response = nil
	}
	return response, err
}
