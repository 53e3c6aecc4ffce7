// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/lone"
)

const (
	cacheColdFloor = "cache.cold.floor_ratio"
	cacheColdCTR   = "cache.cold.ctr_ratio"
	cacheColdRSS   = "cache.cold.rss_mib"
	cacheColdWall  = "cache.cold.wall_ms"
	cacheColdCPU   = "cache.cold.cpu_ms"
	cacheColdBytes = "cache.cold.bytes"
	cacheFloor     = "cache.cold.floor."

	targetColdGzip = 1.5
	targetColdZstd = 2
	targetColdCTR  = 0.77 // of its time: 1.3 times as fast
	targetColdRSS  = 64   // MiB
)

// stageCTR is a pull by containerd's client.
const stageCTR = "ctr"

func cacheUnits() map[string]string {
	all := map[string]string{
		warmAdded: unitMS, cacheColdFloor: unitRatio, cacheColdCTR: unitRatio, cacheColdRSS: unitMiB,
		cacheColdWall: unitMS, cacheColdCPU: unitMS, cacheColdBytes: unitBytes,
	}
	for _, stage := range []string{stageNetwork, stageHash, stageInflate, stageFiles, stageCTR} {
		all[cacheFloor+stage] = unitMS
	}
	return all
}

func treeForms() []artifact.TreeForm {
	return []artifact.TreeForm{artifact.TreeImage, artifact.TreeDirectory}
}

// measureCaches pulls caches of kernels from a registry on loopback.
func (b *bench) measureCaches(ctx context.Context) error {
	for _, size := range b.form.caches {
		b.say("caches of kernels: packing %d MB in %d files", size.bytes/1e6, size.files)
		images, err := makeImages(b.disk, size)
		if err != nil {
			return fmt.Errorf("make an image of a cache: %w", err)
		}
		images[0].warm = true // how it was packed makes no difference once it is on the node
		for _, image := range images {
			b.say("caches of kernels: pulling %d MB in %d files with %s", size.bytes/1e6, size.files, image.compression)
			if err := b.measureCache(ctx, image); err != nil {
				return fmt.Errorf("pull a cache of kernels: %w", err)
			}
		}
	}
	return nil
}

// cold is the best of what each child told: what a machine that is busy with other things adds is not the product's.
type cold struct {
	*bench
	image *cacheImage
	host  string
	best  map[string]told
	noCTR error
	n     int
}

func (b *bench) measureCache(ctx context.Context, image *cacheImage) (err error) {
	host, stop, err := serveImage(image)
	if err != nil {
		return err
	}
	c := &cold{bench: b, image: image, host: host, best: map[string]told{}, noCTR: checkContainerd(b.assets)}
	for range image.pulls {
		if err = c.round(ctx); err != nil {
			break
		}
	}
	if err == nil && image.warm {
		err = errors.Join(b.measureWarm(ctx, image, host, podsUnasked), b.measureWarm(ctx, image, host, podsAsked))
	}
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	for _, form := range treeForms() {
		if err := c.report(form); err != nil {
			return err
		}
	}
	return nil
}

// round is each of all once, since the machine is another one in a minute.
func (c *cold) round(ctx context.Context) error {
	for _, stage := range []string{stageNetwork, stageHash, stageInflate} {
		if err := c.ask(ctx, stage, ""); err != nil {
			return err
		}
	}
	for _, form := range treeForms() {
		for _, stage := range []string{stageFiles, stagePull} {
			if err := c.ask(ctx, stage, form); err != nil {
				return err
			}
		}
	}
	return c.ctr(ctx)
}

func (c *cold) ask(ctx context.Context, stage string, form artifact.TreeForm) error {
	dir, err := c.directory()
	if err != nil {
		return err
	}
	t, err := errand{
		Stage: stage, Host: c.host, Dir: dir, Blob: c.image.blob, Digest: c.image.layer.Digest.String(), Compression: c.image.compression,
		Form: form, Plain: c.image.plain, Files: c.image.files,
	}.ask(ctx)
	c.keep(stage+string(form), t)
	return errors.Join(err, hollow(dir))
}

// hollow frees the disk of what was pulled, and leaves the names until the end: some file systems make files far slower for minutes
// after many were deleted.
func hollow(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = os.Truncate(path, 0)
		}
		return err
	})
}

// directory is a new one on the disk, which has nothing else to do.
func (c *cold) directory() (string, error) {
	c.n++
	dir := filepath.Join(c.disk, "cache"+strconv.Itoa(c.image.files)+c.image.compression+strconv.Itoa(c.n))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	return dir, errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// keep keeps the best time, and the worst peak.
func (c *cold) keep(name string, t told) {
	best, there := c.best[name]
	if there {
		t.Peak = max(t.Peak, best.Peak)
		t.Wall, t.CPU = min(t.Wall, best.Wall), min(t.CPU, best.CPU)
	}
	c.best[name] = t
}

// pullerConfig is of a containerd that pulls and runs nothing.
const pullerConfig = `version = 3
root = %q
state = %q
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.nri.v1.nri",
]

[grpc]
address = %q

[ttrpc]
address = %q
`

// checkContainerd says why there will be no containerd.
func checkContainerd(assets string) error {
	if os.Geteuid() != 0 {
		return errors.New("containerd needs root")
	}
	if _, err := os.Stat(filepath.Join(assets, "containerd")); err != nil {
		return fmt.Errorf("no containerd, make cluster-build makes one: %w", err)
	}
	return nil
}

// ctr pulls with a containerd that has nothing yet. Its client's own start is not counted.
func (c *cold) ctr(ctx context.Context) error {
	if c.noCTR != nil {
		return nil //nolint:nilerr // the report says so
	}
	dir, err := c.directory()
	if err != nil {
		return err
	}
	short := filepath.Join(c.fast, filepath.Base(dir)) // a socket's path may not be long
	if err := os.Mkdir(short, 0o700); err != nil {
		return err
	}
	socket, config := filepath.Join(short, "c.sock"), filepath.Join(short, "config.toml")
	text := fmt.Sprintf(pullerConfig, dir, filepath.Join(short, "state"), socket, filepath.Join(short, "t.sock"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	daemon, err := lone.Start(syscall.CLONE_NEWNS, filepath.Join(c.assets, "containerd"), "--config", config, "--log-level", "warn")
	if err != nil {
		return err
	}
	client := func(args ...string) (time.Duration, error) {
		command := exec.CommandContext(ctx, filepath.Join(c.assets, "ctr"), append([]string{"--address", socket}, args...)...)
		begin := time.Now()
		out, err := command.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return time.Since(begin), err
	}
	var start, took time.Duration
	_, err = lone.Await(ctx, time.Now(), "containerd to answer", func() (bool, error) {
		if err := daemon.Running(); err != nil {
			return false, err
		}
		start, err = client("version") // of which the last counts
		return err == nil, nil
	})
	if err == nil {
		took, err = client("images", "pull", "--plain-http", "--snapshotter", "overlayfs", c.host+"/"+cacheRepository+":v1")
		c.keep(stageCTR, told{Wall: took - start})
	}
	if stopped := daemon.Stop(); err != nil || stopped != nil {
		c.noCTR = errors.Join(err, stopped)
		delete(c.best, stageCTR)
	}
	return hollow(dir)
}

// report writes one form's figures.
func (c *cold) report(form artifact.TreeForm) error {
	at := &point{
		Machine: "caches", Case: c.image.compression, Bytes: int(c.image.plain), Files: c.image.files, Form: string(form),
	}
	n, pull, r := c.image.pulls, c.best[stagePull+string(form)], c.bench.report
	slowest := time.Duration(0)
	var errs []error
	for _, stage := range []string{stageNetwork, stageHash, stageInflate, stageFiles} {
		took := c.best[stage].Wall
		if stage == stageFiles {
			took = c.best[stage+string(form)].Wall
		}
		slowest = max(slowest, took)
		errs = append(errs, r.value(cacheFloor+stage, at, n, milliseconds(took)))
	}
	target, isTarget := coldTarget(c.image.compression, form)
	errs = append(errs,
		r.value(cacheColdWall, at, n, milliseconds(pull.Wall)),
		r.value(cacheColdCPU, at, n, milliseconds(pull.CPU)),
		r.value(cacheColdBytes, at, n, float64(pull.Bytes)),
		r.against(targetColdRSS, cacheColdRSS, at, n, pull.Peak),
		r.against(targetIf(isTarget, target), cacheColdFloor, at, n, float64(pull.Wall)/float64(slowest)),
	)
	if c.noCTR != nil {
		return errors.Join(append(errs, r.nothing(cacheColdCTR, at, c.noCTR))...)
	}
	ctr := c.best[stageCTR].Wall
	return errors.Join(append(errs,
		r.value(cacheFloor+stageCTR, at, n, milliseconds(ctr)),
		r.against(targetColdCTR, cacheColdCTR, at, n, float64(pull.Wall)/float64(ctr)),
	)...)
}

// coldTarget returns the most that a pull may take of its slowest stage, and whether that holds for this form: a directory is for kernels
// that cannot mount a file, and there each file that is made costs more than the stages do.
func coldTarget(compression string, form artifact.TreeForm) (target float64, applies bool) {
	target = targetColdGzip
	if compression == "zstd" {
		target = targetColdZstd
	}
	return target, form == artifact.TreeImage
}
