// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// programmings are what a plugin says of the regions that it programmed since its start.
type programmings struct {
	// count is how often it programmed, took the time of the ioctls alone.
	count float64
	took  time.Duration
	// looks is how often it looked at the machine, as it does after each programming.
	looks float64
}

// programmings reads the plugin's metrics.
func (p *plugin) programmings(ctx context.Context) (_ programmings, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.http+"/metrics", nil)
	if err != nil {
		return programmings{}, err
	}
	request.Header.Set("Accept-Encoding", "identity") // to pack them would cost the plugin more than all else
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return programmings{}, fmt.Errorf("read the plugin's metrics: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return programmings{}, fmt.Errorf("read the plugin's metrics: %s", response.Status)
	}
	return parseProgrammings(response.Body)
}

// parseProgrammings reads the text form of metrics.
func parseProgrammings(text io.Reader) (programmings, error) {
	const count, sum, looks = "fettle_fpga_program_seconds_count", "fettle_fpga_program_seconds_sum", "fettle_discovery_duration_seconds_count"
	found := map[string]float64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name != count && name != sum && name != looks {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return programmings{}, fmt.Errorf("metric %s: %w", name, err)
		}
		found[name] = n
	}
	if err := lines.Err(); err != nil {
		return programmings{}, fmt.Errorf("read the plugin's metrics: %w", err)
	}
	for _, name := range []string{count, sum, looks} {
		if _, ok := found[name]; !ok {
			return programmings{}, fmt.Errorf("the plugin has no metric %s", name)
		}
	}
	return programmings{count: found[count], took: time.Duration(found[sum] * float64(time.Second)), looks: found[looks]}, nil
}

// looked waits until the plugin has looked at the machine again, so that the next call is not measured with that.
func (p *plugin) looked(ctx context.Context, before float64) error {
	const interval = 20 * time.Millisecond
	_, err := await(ctx, time.Now(), "the plugin to look at the machine", func() (bool, error) {
		if err := pause(ctx, interval); err != nil { // to ask costs the plugin time, too
			return false, err
		}
		now, err := p.programmings(ctx)
		return now.looks > before, err
	})
	return err
}
