// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/controller/names"
)

// NewRecorder sends Events to the API server until the returned function is called.
func NewRecorder(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) (events.EventRecorder, func(), error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("start recording Events: %w", err)
	}
	return broadcaster.NewRecorder(scheme, names.Controller), broadcaster.Shutdown, nil
}
