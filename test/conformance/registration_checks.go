// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func registrationChecks() []Check {
	return []Check{
		{
			Name:    "registration/info",
			Summary: "GetInfo tells type DRAPlugin, the driver's name, an absolute endpoint that listens, and a version that kubelet knows",
			needs:   needs{registration: true}, run: checkInfo,
		},
		{
			Name:    "registration/services",
			Summary: "every service that GetInfo lists is served at the endpoint",
			needs:   needs{registration: true}, run: checkServices,
		},
		{
			Name:    "registration/notify",
			Summary: "NotifyRegistrationStatus is accepted, again after a restart of kubelet, and GetInfo stays the same",
			needs:   needs{registration: true}, run: checkNotify,
		},
	}
}

func checkInfo(ctx context.Context, s *scene) error {
	info, err := s.getInfo(ctx)
	if err != nil {
		return err
	}
	var errs []error
	if info.GetType() != registerapi.DRAPlugin {
		errs = append(errs, fmt.Errorf("type is %q, want %q", info.GetType(), registerapi.DRAPlugin))
	}
	if info.GetName() != s.config.Driver {
		errs = append(errs, fmt.Errorf("name is %q, want the driver's, %q", info.GetName(), s.config.Driver))
	}
	known := []string{drav1.DRAPluginService, drav1beta1.DRAPluginService}
	if !slices.ContainsFunc(info.GetSupportedVersions(), func(v string) bool { return slices.Contains(known, v) }) {
		errs = append(errs, fmt.Errorf("supported versions are %q, want at least one of %q", info.GetSupportedVersions(), known))
	}
	return errors.Join(append(errs, listens(ctx, info.GetEndpoint()))...)
}

// listens wants a socket at an absolute path.
func listens(ctx context.Context, endpoint string) error {
	if !filepath.IsAbs(endpoint) {
		return fmt.Errorf("endpoint is %q, want an absolute path", endpoint)
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", endpoint)
	if err != nil {
		return fmt.Errorf("endpoint does not listen: %w", err)
	}
	return connection.Close()
}

// getInfo asks the registration anew.
func (s *session) getInfo(ctx context.Context) (*registerapi.PluginInfo, error) {
	if s.plugin.registration == nil {
		return nil, fmt.Errorf("there was no socket %s when the plugin was looked for", s.config.Registration)
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	info, err := s.plugin.registration.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("GetInfo: %w", err)
	}
	return info, nil
}

func checkServices(ctx context.Context, s *scene) error {
	info, err := s.getInfo(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	var errs []error
	for _, service := range info.GetSupportedVersions() {
		call, ok := emptyCalls()[service]
		if !ok {
			continue // one of a version yet to come
		}
		if err := call(ctx, s.plugin.serving); err != nil {
			errs = append(errs, fmt.Errorf("service %s is listed and answers an empty call with: %w", service, err))
		}
	}
	return errors.Join(errs...)
}

// emptyCalls make one call of each service. A health service may be listed and refuse: that is how a plugin built with the usual
// library says that it has no health to report.
func emptyCalls() map[string]func(context.Context, *grpc.ClientConn) error {
	return map[string]func(context.Context, *grpc.ClientConn) error{
		drav1.DRAPluginService: func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := drav1.NewDRAPluginClient(c).NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{})
			return err
		},
		drav1beta1.DRAPluginService: func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := drav1beta1.NewDRAPluginClient(c).NodePrepareResources(ctx, &drav1beta1.NodePrepareResourcesRequest{})
			return err
		},
		drahealthv1.DRAResourceHealthService: func(ctx context.Context, c *grpc.ClientConn) error {
			return mayDecline(firstMessage(ctx, drahealthv1.NewDRAResourceHealthClient(c)))
		},
		drahealthv1alpha1.DRAResourceHealthService: func(ctx context.Context, c *grpc.ClientConn) error {
			older := drahealthv1.V1Alpha1ClientWrapper{Client: drahealthv1alpha1.NewDRAResourceHealthClient(c)}
			return mayDecline(firstMessage(ctx, older))
		},
	}
}

func mayDecline(err error) error {
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

func checkNotify(ctx context.Context, s *scene) error {
	before, err := s.getInfo(ctx)
	if err != nil {
		return err
	}
	for range 2 {
		if err := s.notify(ctx); err != nil {
			return err
		}
	}
	after, err := s.getInfo(ctx)
	if err != nil {
		return err
	}
	if was, is := describe(before), describe(after); was != is {
		return fmt.Errorf("GetInfo was %s and is %s after the registration", was, is)
	}
	return nil
}

func describe(info *registerapi.PluginInfo) string {
	return fmt.Sprintf("{%s %q at %q, versions %q}", info.GetType(), info.GetName(), info.GetEndpoint(), info.GetSupportedVersions())
}

func (s *session) notify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	_, err := s.plugin.registration.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
	if err != nil {
		return fmt.Errorf("NotifyRegistrationStatus that the plugin is registered: %w", err)
	}
	return nil
}
