// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

// browser is a headless Chromium. It is told what to do over a pair of pipes, in messages of its DevTools protocol that end with a zero
// byte.
type browser struct {
	t       *testing.T
	out     *os.File
	answers *bufio.Reader
	last    int
	session string
	// events are what the browser told of itself since the last page was opened.
	events []message
}

// message is a command, its answer, or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *failure        `json:"error,omitempty"`
}

type failure struct{ Message string }

// newBrowser starts Chromium with an empty profile. Where there is none, the test is skipped; continuous integration must have one.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("no browser: ", err)
	}
	// The test's own context ends before its cleanups, which let the browser end by itself.
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Minute)
	toBrowser, ours, err := os.Pipe()
	check.Must(t, err)
	theirs, fromBrowser, err := os.Pipe()
	check.Must(t, err)
	command := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	command.ExtraFiles = []*os.File{toBrowser, fromBrowser} // descriptors 3 and 4
	var log strings.Builder
	command.Stderr, command.WaitDelay = &log, 10*time.Second
	check.Must(t, command.Start())
	toBrowser.Close()
	fromBrowser.Close()
	b := &browser{t: t, out: ours, answers: bufio.NewReader(theirs)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("chromium: %s", &log)
		}
		b.session = ""
		_, err := b.try("Browser.close", nil)
		waited := command.Wait()
		stop()
		ours.Close()
		theirs.Close()
		if err != nil || waited != nil {
			t.Logf("chromium ended: %v", errors.Join(err, waited))
		}
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Network", "Log", "Runtime", "Accessibility"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call sends a command and reads its answer.
func (b *browser) call(method string, params map[string]any, answer any) {
	b.t.Helper()
	result, err := b.try(method, params)
	check.Must(b.t, err)
	if answer != nil {
		check.Must(b.t, json.Unmarshal(result, answer))
	}
}

func (b *browser) try(method string, params map[string]any) (json.RawMessage, error) {
	b.last++
	if params == nil {
		params = map[string]any{}
	}
	encoded, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	command, err := json.Marshal(message{ID: b.last, Method: method, Session: b.session, Params: encoded})
	if err != nil {
		return nil, err
	}
	if _, err := b.out.Write(append(command, 0)); err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	for {
		m, err := b.read()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", method, err)
		case m.ID == 0:
			b.events = append(b.events, m)
		case m.ID == b.last && m.Error != nil:
			return nil, fmt.Errorf("%s: %s", method, m.Error.Message)
		case m.ID == b.last:
			return m.Result, nil
		}
	}
}

func (b *browser) read() (message, error) {
	var m message
	text, err := b.answers.ReadBytes(0)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(text[:len(text)-1], &m)
}

// await reads until the browser tells of an event.
func (b *browser) await(method string) {
	b.t.Helper()
	for {
		for _, e := range b.events {
			if e.Method == method {
				return
			}
		}
		m, err := b.read()
		check.Must(b.t, err)
		b.events = append(b.events, m)
	}
}

// open shows a file and waits until it is loaded.
func (b *browser) open(file string) {
	b.t.Helper()
	b.events = nil
	b.call("Page.navigate", map[string]any{"url": "file://" + file}, nil)
	b.await("Page.loadEventFired")
}

// look is how a page is looked at.
type look struct {
	width, height int
	media, scheme string
}

// show sets the size of the window, and whether it is paper and how bright.
func (b *browser) show(l look) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": l.width, "height": l.height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{
		"media": l.media, "features": []map[string]string{{"name": "prefers-color-scheme", "value": l.scheme}},
	}, nil)
}

// measure runs a function on the page and reads what it returns. The page's own policy stays in force.
func (b *browser) measure(function string, answer any) {
	b.t.Helper()
	var got struct {
		Result    struct{ Value json.RawMessage }
		Exception *struct {
			Exception struct{ Description string }
		} `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": "(" + function + ")()", "returnByValue": true}, &got)
	if got.Exception != nil {
		b.t.Fatal(got.Exception.Exception.Description)
	}
	check.Must(b.t, json.Unmarshal(got.Result.Value, answer))
}

// screenshot is a picture of a part of the page, as PNG.
func (b *browser) screenshot(r rect) []byte {
	b.t.Helper()
	var got struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{
		"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": r.X, "y": r.Y, "width": r.W, "height": r.H, "scale": 1},
	}, &got)
	data, err := base64.StdEncoding.DecodeString(got.Data)
	check.Must(b.t, err)
	return data
}

// press presses a key.
func (b *browser) press(key string, code int) {
	b.t.Helper()
	event := map[string]any{"key": key, "code": key, "windowsVirtualKeyCode": code}
	if key == "Enter" {
		event["text"] = "\r"
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		event["type"] = kind
		b.call("Input.dispatchKeyEvent", event, nil)
	}
}
