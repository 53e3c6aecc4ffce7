// SPDX-License-Identifier: Apache-2.0

package play

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/demo/internal/script"
	"github.com/fettle-dev/fettle/test/harness"
)

func (st *stage) apply(ctx context.Context, names []string) error {
	for _, name := range names {
		st.applied = append(st.applied, st.file(name))
		if _, err := st.kubectl(ctx, "apply", "--filename", st.file(name)); err != nil {
			return err
		}
	}
	return nil
}

// convert applies what the command line makes of a file of another API. The words after the file are further flags.
func (st *stage) convert(ctx context.Context, words []string) error {
	made, err := st.h.Fettle(ctx, append([]string{"convert", "-f", st.file(words[0]), "-n", st.Namespace()}, words[1:]...)...)
	if err != nil {
		return err
	}
	st.converted = append(st.converted, made)
	_, err = st.h.KubectlWith(ctx, made, "--context", st.Namespace(), "apply", "--filename", "-")
	return err
}

// refused expects that the API server refuses a file and says why. It tries without effect first, for admission learns of a new
// class, and of its webhook, within moments.
func (st *stage) refused(ctx context.Context, step script.Step) error {
	args := []string{"apply"}
	for _, name := range step.Args {
		args = append(args, "--filename", st.file(name))
	}
	err := st.h.Poll(ctx, "the refusal", patience, func(ctx context.Context) error {
		return st.refusal(ctx, step, append(args, "--dry-run=server"))
	})
	if err != nil {
		return err
	}
	return st.refusal(ctx, step, args)
}

func (st *stage) refusal(ctx context.Context, step script.Step, args []string) error {
	out, err := st.kubectl(ctx, args...)
	if err == nil {
		return fmt.Errorf("it was not refused: %s", out)
	}
	var failed *harness.CommandError
	if !errors.As(err, &failed) {
		return err
	}
	return st.see(step, failed.Output, nil)
}

func (st *stage) delete(ctx context.Context, pods []string) error {
	for _, word := range pods {
		namespace, name := st.pod(word)
		if _, err := st.h.Kubectl(ctx, "delete", "pod", "--namespace", namespace, name, "--wait=false", "--grace-period=1"); err != nil {
			return err
		}
	}
	return nil
}

func (st *stage) running(ctx context.Context, pods []string) error {
	for _, word := range pods {
		namespace, name := st.pod(word)
		err := st.h.Poll(ctx, "pod "+word+" to run", patience, func(ctx context.Context) error {
			return st.h.PodDone(ctx, namespace, name, corev1.PodRunning)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (st *stage) gone(ctx context.Context, pods []string) error {
	for _, word := range pods {
		namespace, name := st.pod(word)
		err := st.h.Poll(ctx, "pod "+word+" to go", patience, func(ctx context.Context) error {
			_, err := st.h.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			return errors.New("it is there")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pending expects what the scheduler says of a pod that it finds no node for.
func (st *stage) pending(ctx context.Context, step script.Step) error {
	namespace, name := st.pod(step.Args[0])
	return st.h.Poll(ctx, "pod "+step.Args[0]+" to be pending", patience, func(ctx context.Context) error {
		pod, err := st.h.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return st.see(step, c.Message, nil)
			}
		}
		return fmt.Errorf("pod is %s", pod.Status.Phase)
	})
}

// exec runs a shell script in a container, once: what must be seen is to be there as soon as the pod runs.
func (st *stage) exec(ctx context.Context, step script.Step) error {
	namespace, name := st.pod(step.Args[0])
	out, err := st.h.Exec(ctx, namespace, name, step.Args[1], step.Text)
	return st.see(step, out, err)
}

// get reads objects with a JSONPath template until they are as expected.
func (st *stage) get(ctx context.Context, step script.Step) error {
	return st.h.Poll(ctx, step.Args[0], patience, func(ctx context.Context) error {
		out, err := st.kubectl(ctx, "get", step.Args[0], "--output", "jsonpath="+step.Text)
		return st.see(step, out, err)
	})
}

// fettle runs the command line until its output is as expected.
func (st *stage) fettle(ctx context.Context, step script.Step) error {
	return st.h.Poll(ctx, "fettle "+step.Args[0], patience, func(ctx context.Context) error {
		out, err := st.h.Fettle(ctx, step.Args...)
		return st.see(step, out, err)
	})
}
