// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"k8s.io/client-go/kubernetes"
)

// Config says which plugin is checked, how it is reached and how long things may take. Durations and counts have no defaults here,
// except that the zero CallTimeout is kubelet's.
type Config struct {
	// Kube is the API server to which the plugin publishes and from which it reads claims.
	Kube kubernetes.Interface
	// Driver is the driver's name, as in ResourceSlices and allocations.
	Driver string
	// Node is the Node that the plugin serves. Empty: the one that all node-local slices of the driver name.
	Node string
	// Endpoint is the socket of the DRAPlugin service. Empty: the one that registration tells.
	Endpoint string
	// Registration is the socket of the Registration service, or a pattern as of path/filepath.Match; of several that match, the
	// newest is taken. Empty: what needs it is skipped.
	Registration string
	// CDIDirs are the directories from which the container runtime reads CDI specs; a later one has precedence. None: what needs
	// them is skipped.
	CDIDirs []string
	// Class is the DeviceClass that claims name. It is made for the run where there is none.
	Class string
	// Parameters are the driver's opaque configuration, put into every allocation as the class's. Empty: none.
	Parameters json.RawMessage
	// Devices matches POOL/DEVICE of the devices that may be used. Nil: all.
	Devices *regexp.Regexp
	// Restart ends the plugin and starts it again; Reboot does what a reboot of the node does to it. They return when the old
	// instance has ended. Nil: what needs them is skipped.
	Restart, Reboot func(context.Context) error
	// CallTimeout bounds one call.
	CallTimeout time.Duration
	// Patience bounds what the plugin may do in the background: start, publish, free a device, remove files.
	Patience time.Duration
	// StableFor is how long slices are watched for writes that change nothing.
	StableFor time.Duration
	// Parallel is how many calls run side by side in the checks of concurrency.
	Parallel int
}

// kubeletTimeout is what kubelet gives a call.
const kubeletTimeout = 45 * time.Second

// validate says what is missing.
func (c *Config) validate() error {
	var errs []error
	if c.Kube == nil {
		errs = append(errs, errors.New("no API server is given"))
	}
	if c.Driver == "" {
		errs = append(errs, errors.New("no driver name is given"))
	}
	if c.Endpoint == "" && c.Registration == "" {
		errs = append(errs, errors.New("no socket is given: want the endpoint's, the registration's or both"))
	}
	if len(c.Parameters) > 0 && !json.Valid(c.Parameters) {
		errs = append(errs, fmt.Errorf("the parameters are not JSON: %.60s", c.Parameters))
	}
	if c.Parallel < 2 {
		errs = append(errs, fmt.Errorf("%d parallel calls: want at least 2", c.Parallel))
	}
	return errors.Join(errs...)
}
