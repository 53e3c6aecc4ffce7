// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// plugin is kubelet's end of the connections to one instance.
type plugin struct {
	// registration and info are nil without a registration socket.
	registration registerapi.RegistrationClient
	info         *registerapi.PluginInfo
	// serving is the connection to the endpoint; dra and health are the newest services on it that both sides know. health is nil
	// where the plugin offers none.
	serving *grpc.ClientConn
	dra     drav1.DRAPluginClient
	health  drahealthv1.DRAResourceHealthClient

	connections []*grpc.ClientConn
}

// connect finds the plugin as kubelet does: the registration tells the endpoint and the services there.
func connect(ctx context.Context, config *Config) (p *plugin, err error) {
	p = &plugin{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, config.CallTimeout)
	defer cancel()
	if config.Registration != "" {
		if err := p.ask(ctx, config); err != nil && config.Endpoint == "" {
			return p, err
		}
	}
	p.serving, err = p.dial(cmp.Or(config.Endpoint, p.info.GetEndpoint()))
	if err != nil {
		return p, err
	}
	p.choose(ctx)
	return p, nil
}

// ask gets the plugin's information from the registration socket.
func (p *plugin) ask(ctx context.Context, config *Config) error {
	socket, err := newest(config.Registration)
	if err != nil {
		return err
	}
	connection, err := p.dial(socket)
	if err != nil {
		return err
	}
	p.registration = registerapi.NewRegistrationClient(connection)
	p.info, err = p.registration.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return fmt.Errorf("GetInfo at %s: %w", socket, err)
	}
	return nil
}

// newest is the file that was made last of those that match a pattern.
func newest(pattern string) (string, error) {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return "", fmt.Errorf("pattern %q: %w", pattern, err)
	}
	var best string
	var made int64
	for _, name := range names {
		info, err := os.Stat(name)
		if err == nil && (best == "" || info.ModTime().UnixNano() > made) {
			best, made = name, info.ModTime().UnixNano()
		}
	}
	if best == "" {
		return "", fmt.Errorf("no socket %s: is the plugin running?", pattern)
	}
	return best, nil
}

// choose takes the newest services that the plugin says it has. One that says nothing is asked.
func (p *plugin) choose(ctx context.Context) {
	p.dra = drav1.NewDRAPluginClient(p.serving)
	older := drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(p.serving)}
	services := p.info.GetSupportedVersions()
	if p.info == nil {
		_, err := p.dra.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{})
		if status.Code(err) == codes.Unimplemented {
			p.dra = older
		}
	} else if !slices.Contains(services, drav1.DRAPluginService) {
		p.dra = older
	}
	health := drahealthv1.NewDRAResourceHealthClient(p.serving)
	olderHealth := drahealthv1.V1Alpha1ClientWrapper{Client: drahealthv1alpha1.NewDRAResourceHealthClient(p.serving)}
	switch {
	case slices.Contains(services, drahealthv1.DRAResourceHealthService):
		p.health = health
	case slices.Contains(services, drahealthv1alpha1.DRAResourceHealthService):
		p.health = olderHealth
	case p.info == nil && status.Code(firstMessage(ctx, health)) != codes.Unimplemented:
		p.health = health
	case p.info == nil:
		p.health = olderHealth
	}
}

// firstMessage waits for the first report of a health stream.
func firstMessage(ctx context.Context, client drahealthv1.DRAResourceHealthClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.NodeWatchResources(ctx, &drahealthv1.NodeWatchResourcesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

func (p *plugin) dial(socket string) (*grpc.ClientConn, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, fmt.Errorf("socket %q: %w", socket, err)
	}
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	p.connections = append(p.connections, connection)
	return connection, nil
}

func (p *plugin) close() error {
	var errs []error
	for _, connection := range p.connections {
		errs = append(errs, connection.Close())
	}
	return errors.Join(errs...)
}
