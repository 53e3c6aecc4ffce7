// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// The figures of "fettle plan".
const (
	planRate   = "plan.rate"
	planClaim  = "plan.claim"
	planMemory = "plan.rss.peak"
	planSearch = "plan.search"
)

const (
	// planMachine has eight GPUs.
	planMachine = "8-gpus"
	// caseShort is a claim of eight requests of one device each where seven are free.
	caseShort = "short"
	// targetPlanClaim is in ms of one processor: 1,000 claims a second.
	targetPlanClaim = 1
	// targetPlanSearch is the scheduler's own limit, in ms.
	targetPlanSearch = 10_000
)

// planForm says how many claims are planned on how many nodes of eight GPUs.
type planForm struct{ nodes, claims int }

// newPlanBench makes what measurePlan needs.
func newPlanBench(_ context.Context, o options, r *report, progress io.Writer) (*bench, error) {
	b := &bench{options: o, report: r, progress: progress, begin: time.Now()}
	if err := b.makeDirectories(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// measurePlan runs "fettle plan" on one processor, from the file to the report.
func (b *bench) measurePlan(ctx context.Context) error {
	form := b.form.plan
	b.say("planning %d claims on %d nodes", form.claims, form.nodes)
	fettle := filepath.Join(b.disk, "fettle")
	if err := build(ctx, b.root, fettle, "./cmd/fettle"); err != nil {
		return err
	}
	many, err := b.runPlan(ctx, fettle, fleetFile(form.nodes, 8, form.claims, 1))
	if err != nil {
		return err
	}
	at := point{Machine: planMachine, Devices: 1, Parallel: 1, Nodes: form.nodes}
	claims := float64(form.claims)
	err = errors.Join(
		b.report.value(planRate, &at, form.claims, claims/many.cpu.Seconds()),
		b.report.against(targetPlanClaim, planClaim, &at, form.claims, 1000*many.cpu.Seconds()/claims),
		b.report.value(planMemory, &at, 1, many.peak),
	)
	if err != nil {
		return err
	}
	short, err := b.runPlan(ctx, fettle, fleetFile(1, 7, 1, 8))
	if err != nil {
		return err
	}
	at = point{Machine: planMachine, Devices: 8, Parallel: 1, Case: caseShort, Nodes: 1}
	return b.report.against(targetPlanSearch, planSearch, &at, 1, 1000*short.cpu.Seconds())
}

// planRun is what a run of "fettle plan" took.
type planRun struct {
	cpu time.Duration
	// peak is in MiB.
	peak float64
}

// runPlan plans a file. That pods have no node is expected: there are more claims than devices.
func (b *bench) runPlan(ctx context.Context, fettle string, objects []byte) (planRun, error) {
	file := filepath.Join(b.fast, "plan.yaml")
	if err := os.WriteFile(file, objects, 0o600); err != nil {
		return planRun{}, err
	}
	command := exec.CommandContext(ctx, fettle, "plan", "-f", file, "-o", "json")
	command.Env = append(os.Environ(), "GOMAXPROCS=1")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	const noNode = 3
	if err := command.Run(); command.ProcessState == nil {
		return planRun{}, fmt.Errorf("fettle plan: %w", err)
	} else if status := command.ProcessState.ExitCode(); status != noNode {
		return planRun{}, fmt.Errorf("fettle plan: exit status %d, want %d: %s", status, noNode, stderr.String())
	}
	usage, ok := command.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return planRun{}, errors.New("fettle plan: its memory is not known")
	}
	return planRun{cpu: command.ProcessState.UserTime() + command.ProcessState.SystemTime(), peak: float64(usage.Maxrss) / 1024}, nil
}

// fleetFile has nodes with GPUs, and pods with a claim of a template each that asks for some GPUs, each in a request of its own.
func fleetFile(nodes, gpus, pods, requests int) []byte {
	var out bytes.Buffer
	fmt.Fprint(&out, `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: device.driver == "gpu.example.com"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus}
spec:
  spec:
    devices:
      requests:
`)
	for i := range requests {
		fmt.Fprintf(&out, `      - name: gpu-%d
        exactly:
          deviceClassName: gpu
          selectors: [{cel: {expression: 'device.attributes["gpu.example.com"].model == "h100"'}}]
`, i)
	}
	for n := range nodes {
		fmt.Fprintf(&out, `---
{apiVersion: v1, kind: Node, metadata: {name: node-%04[1]d, labels: {kubernetes.io/hostname: node-%04[1]d}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-%04[1]d-gpus}
spec:
  driver: gpu.example.com
  nodeName: node-%04[1]d
  pool: {name: node-%04[1]d, generation: 1, resourceSliceCount: 1}
  devices:
`, n)
		for d := range gpus {
			const device = "  - {name: gpu-%[2]d, attributes: {model: {string: h100}, index: {int: %[2]d}, uuid: {string: GPU-%[1]d-%[2]d}}}\n"
			fmt.Fprintf(&out, device, n, d)
		}
	}
	for p := range pods {
		fmt.Fprintf(&out, `---
apiVersion: v1
kind: Pod
metadata: {name: pod-%04d}
spec: {resourceClaims: [{name: gpus, resourceClaimTemplateName: gpus}], containers: [{name: c, resources: {claims: [{name: gpus}]}}]}
`, p)
	}
	return out.Bytes()
}
