// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
)

// files are a certificate for a name, its key and a token of one letter.
func files(t *testing.T, name, letter string) fstest.MapFS {
	t.Helper()
	crt, key, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{
		certFile: {Data: crt}, keyFile: {Data: key}, tokenFile: {Data: []byte(strings.Repeat(letter, 64) + "\n")},
	}
}

// changing is a directory of files that change while they are read.
type changing struct {
	mu    sync.Mutex
	files fstest.MapFS
}

func (c *changing) Open(name string) (fs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.files.Open(name)
}

// put takes the files of these names from others, all of them if there are no names.
func (c *changing) put(from fstest.MapFS, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, file := range from {
		if len(names) == 0 || slices.Contains(names, name) {
			c.files[name] = file
		}
	}
}

// TestFollow serves what is in the files, the newest within a minute.
func TestFollow(t *testing.T) {
	first, second := files(t, "first.svc", "a"), files(t, "second.svc", "b")
	synctest.Test(t, func(t *testing.T) {
		mounted := &changing{files: fstest.MapFS{}}
		ends := 0
		f := &Follower{Files: mounted, Clock: clock.RealClock{}, Changed: func(time.Time) { ends++ }}
		if err := f.Sync(); err == nil || f.Ready() == nil || f.Token() != "" {
			t.Errorf("without files: %v, token %q", err, f.Token())
		}
		if _, err := f.GetCertificate(nil); err == nil {
			t.Error("a certificate without files")
		}
		mounted.put(first)
		go f.Run(t.Context())
		expect := func(name, letter string) {
			t.Helper()
			got, err := f.GetCertificate(nil)
			if err != nil || got.Leaf.VerifyHostname(name) != nil || f.Token() != strings.Repeat(letter, 64) || f.Ready() != nil {
				t.Errorf("not of %s: %v, token %q", name, err, f.Token())
			}
		}
		synctest.Wait()
		expect("first.svc", "a")
		mounted.put(second, certFile) // its key is not there yet
		time.Sleep(interval)
		synctest.Wait()
		expect("first.svc", "a")
		mounted.put(second, keyFile, tokenFile)
		time.Sleep(interval)
		synctest.Wait()
		expect("second.svc", "b")
		if ends != 2 {
			t.Errorf("told of %d certificates, want 2", ends)
		}
	})
}

// TestRefused says which file is wrong.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(fstest.MapFS)
		want   string
	}{
		"no certificate": {func(m fstest.MapFS) { delete(m, certFile) }, certFile},
		"garbage":        {func(m fstest.MapFS) { m[certFile] = &fstest.MapFile{Data: []byte("x")} }, certFile},
		"no key":         {func(m fstest.MapFS) { delete(m, keyFile) }, keyFile},
		"no token":       {func(m fstest.MapFS) { delete(m, tokenFile) }, tokenFile},
		"an empty token": {func(m fstest.MapFS) { m[tokenFile] = &fstest.MapFile{Data: []byte("\n")} }, "at least 32 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mounted := files(t, "a.svc", "a")
			test.change(mounted)
			f := &Follower{Files: mounted, Clock: clock.RealClock{}}
			if err := f.Sync(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}
