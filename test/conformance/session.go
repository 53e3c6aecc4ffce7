// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// session is one run: what all checks share.
type session struct {
	config *Config
	// node is the Node that the plugin serves, "" where nothing tells it.
	node string
	// namespace is the run's own.
	namespace string
	plugin    *plugin
	// madeClass says that the run made the class of its claims.
	madeClass bool
	// shares is what one claim consumes of each free device that allows several allocations.
	shares map[device]consumed
	// before are the files of the CDI directories when the run began.
	before files
}

// pause is the time between two looks at something that is waited for.
const pause = 50 * time.Millisecond

// newSession waits for the plugin to publish, so that the files that it keeps for its devices are there before they are listed. A
// plugin that publishes nothing is no reason to give up: checks say so.
func newSession(ctx context.Context, config *Config) (*session, error) {
	s := &session{config: config, node: config.Node, namespace: "dra-conformance-" + rand.String(5)}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	err := s.eventually(ctx, func(ctx context.Context) error {
		node, err := s.findNode(ctx)
		if err != nil {
			return err
		}
		s.node = node
		_, err = s.pools(ctx)
		return err
	})
	if err != nil && !errors.Is(err, errNotPublished) {
		return nil, errors.Join(err, s.plugin.close())
	}
	if s.before, err = listFiles(config.CDIDirs); err != nil {
		return nil, errors.Join(err, s.plugin.close())
	}
	if err := s.createClass(ctx); err != nil {
		return nil, errors.Join(err, s.plugin.close())
	}
	_, err = s.config.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}},
		metav1.CreateOptions{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the run's namespace: %w", err), s.deleteClass(ctx), s.plugin.close())
	}
	return s, nil
}

// createClass makes the class that the claims name, unless the cluster has it. A driver may read what it allows.
func (s *session) createClass(ctx context.Context) error {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: s.config.Class}}
	if len(s.config.Parameters) > 0 {
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: parametersOf(s.config.Driver, s.config.Parameters)}}
	}
	_, err := s.config.Kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create DeviceClass %s: %w", class.Name, err)
	}
	s.madeClass = true
	return nil
}

func (s *session) deleteClass(ctx context.Context) error {
	if !s.madeClass {
		return nil
	}
	err := s.config.Kube.ResourceV1().DeviceClasses().Delete(ctx, s.config.Class, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete DeviceClass %s, do it by hand: %w", s.config.Class, err)
	}
	return nil
}

// close removes the namespace and the class.
func (s *session) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	err := s.config.Kube.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		err = fmt.Errorf("delete the run's namespace %s, do it by hand: %w", s.namespace, err)
	} else {
		err = nil
	}
	return errors.Join(err, s.deleteClass(ctx), s.plugin.close())
}

// connect waits until the plugin answers.
func (s *session) connect(ctx context.Context) error {
	return s.eventually(ctx, func(ctx context.Context) error {
		p, err := connect(ctx, s.config)
		if err != nil {
			return err
		}
		s.plugin = p
		return nil
	})
}

// hook runs a command of the user that ends the plugin and starts it, and connects to the new instance once it answers calls.
func (s *session) hook(ctx context.Context, command func(context.Context) error) error {
	if err := command(ctx); err != nil {
		return err
	}
	err := s.eventually(ctx, func(ctx context.Context) error {
		p, err := connect(ctx, s.config)
		if err != nil {
			return err
		}
		err = s.plugin.close()
		s.plugin = p
		_, called := s.callPrepare(ctx)
		return errors.Join(err, called)
	})
	if err != nil {
		return fmt.Errorf("the plugin does not answer %s after the command: %w", s.config.Patience, err)
	}
	return nil
}

// eventually calls try until it returns nil or the patience is over, and then returns its last error. A try that is skipped is not
// tried again.
func (s *session) eventually(ctx context.Context, try func(context.Context) error) error {
	return within(ctx, s.config.Patience, try)
}

func within(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try(ctx)
		if err == nil || errors.As(err, new(skipError)) || time.Now().After(deadline) {
			return err
		}
		if !sleep(ctx, pause) {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// sleep returns false where ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
